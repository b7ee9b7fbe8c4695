"""A client's request from bytes to bytes: one record, steps around it, sources of its answer tried in order.

Read in this order: ``endpoint`` (all of it, for every route), ``request`` (the record), ``chain`` (several models),
``contract`` (steps, sources), ``output`` (an answer as it comes), ``sending`` (as a stream, or whole), ``edge`` (key
and place), ``draft`` (what is left for the ledger), ``bugs``, ``finished``.
"""
