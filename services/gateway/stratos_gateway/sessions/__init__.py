"""Sessions with decode workers.

Read in this order: ``sink`` (receives what a session hears), ``session`` (one worker), ``pool``, ``liveness``.
"""
