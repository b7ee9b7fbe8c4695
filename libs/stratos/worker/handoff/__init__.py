"""The KV hand-off, both ends: intend, grant, stage, commit.

Read in this order: ``records``, ``receiver`` and ``receiver_leg`` (decode side), ``source_servicer`` and
``source_leg`` (prefill side), ``pairing``, ``staging_slots``, ``codec``.
"""
