"""The ``stratos`` command and the local supervisor of ``stratos up``.

Read in this order: ``main`` (the commands), ``commands`` (more of them), ``up``, ``local`` (the platform on one
machine), ``data`` (its folder), ``money`` (statements of the ledger), ``load`` (``stratos bench``).
"""
