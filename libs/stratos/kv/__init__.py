"""KV between workers: one contract, several transports.

Read in this order: ``transfer`` (the contract), ``settings``, ``framing``, ``staging``, ``receiver``, ``sender``,
then a transport: ``shm``, ``inproc``, ``tls``, or of ``groups``; ``capabilities`` (what reaches what) and ``registry``,
which has all of them.
"""
