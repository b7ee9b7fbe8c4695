"""The ``stratos`` command and the local supervisor of ``stratos up``.

Read in this order: ``main`` (the commands), ``commands`` (more of them), ``up``, ``local`` (the platform on one
machine), ``forking`` (how its processes start quickly), ``data`` (its folder), ``certificates`` (of mTLS), ``money``
(what the ledger says).
"""
