"""Rules that the engine and the router apply alike.

Read in this order: ``admission`` (whether a request fits), ``ageing`` (what its wait is worth), ``quantile``.
"""
