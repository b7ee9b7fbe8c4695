"""Sessions with decode workers.

Read in this order: ``sink`` (receives what a session hears), ``outbox`` (what it has yet to say), ``session`` (one
worker), ``pool``, ``liveness``.
"""
