"""Sessions with decode workers.

Read in this order: ``records``, ``session`` (one worker), ``pool``, ``liveness``, ``messages``.
"""
