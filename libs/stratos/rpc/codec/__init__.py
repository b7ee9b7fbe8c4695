"""Records of ``stratos.core`` as protobuf messages, both directions in one place.

Flat records have a row each, ``NAME = FlatCodec(Record, Message, ...)``; what depends on the time, and tokens on their
way to a client, have functions.

Read in this order: ``fields`` and ``flat`` (the codec by table), ``terms``, ``trace``, ``fleet``, ``cache``,
``placement``, ``convictions``, ``usage``, ``generation`` (sessions), ``embedding``, ``unknown_fields`` (fields of a
newer peer).
"""
