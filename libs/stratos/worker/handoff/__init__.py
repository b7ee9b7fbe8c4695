"""The KV hand-off, both ends: intend, grant, stage, commit.

Read in this order: ``records``, ``receiver``, ``receiver_leg``, ``source_watch`` and ``target`` (decode side),
``source_servicer``, ``source_leg`` and ``source_jobs`` (the side that sends), ``pairing``, ``transports``, ``streams``,
``codec``.
"""
