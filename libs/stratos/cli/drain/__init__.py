"""``stratos drain``: a worker of a running platform leaves, and its streams go on at others.

Read in this order: ``command``, ``worker`` (asks the supervisor, and the worker what it moved).
"""
