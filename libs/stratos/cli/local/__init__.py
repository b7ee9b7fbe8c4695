"""The platform on one machine.

Read in this order: ``topology`` (which processes there are), ``process`` (one of them), ``supervisor`` (all of them),
``platform`` (start and end), ``servicer`` and ``lease`` (what the autoscaler asks, and which one may).
"""
