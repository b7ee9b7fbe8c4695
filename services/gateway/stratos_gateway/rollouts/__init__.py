"""Roll-outs: a model's requests go over to another revision in steps, and back where a gate says so.

Read in this order: ``settings``, ``start`` (what can be rolled out), ``evidence`` (requests of both revisions, counted
by each gateway) with ``step``, ``judge`` (what follows from them: no clock, no store), ``controller`` (acts on it),
``drift`` (asks both revisions), ``routes``, ``shown`` (metrics), ``parts``.
"""
