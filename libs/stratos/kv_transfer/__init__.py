"""KV between workers: one contract, several transports.

Read in this order: ``transfer`` (the contract), ``settings``, ``framing``, ``staging``, ``receiver``, ``sender``,
``accepting``, then a transport: ``shm``, ``inproc``, ``tls``, of ``groups`` or ``device``; ``port`` (where they run:
beside the pages of an engine), ``capabilities`` (what reaches what) and ``registry``, which has all of them.
"""
