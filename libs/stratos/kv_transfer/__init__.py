"""KV between workers: one contract, several transports.

Read in this order: ``transfer`` (the contract of a transport), ``settings``, ``framing``, ``staging``, ``port`` (where
transports run, beside the pages of an engine, and the ends that a worker has of them), ``fitting``, ``accepting``, then
a transport: ``shm``, ``inproc``, ``tls``, of ``groups`` or ``device``; ``capabilities`` (which of them joins two
workers) and ``registry``, which has all of them.
"""
