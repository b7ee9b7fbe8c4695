"""Records of ``stratos.core`` as protobuf messages, both directions in one file each.

Read in this order: ``terms``, ``trace``, ``generation`` (sessions), ``embedding``, ``fleet``, ``cache``,
``unknown_fields`` (what a newer peer sends).
"""
