"""The ``stratos`` command and the local supervisor behind ``stratos up``.

Read in this order: ``topology`` (which processes there are), ``process`` (one of them), ``supervisor`` (all of
them), ``servicer`` (what the autoscaler asks), ``up`` (the command).
"""
