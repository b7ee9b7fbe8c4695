"""Records and rules that services and libraries share; no I/O, no torch.

Read in this order: ``requests`` (what a tenant asks for), ``tenant`` and ``trace`` (for whom, and how it is found in
logs), ``generation`` (what gateway and decode worker say to each other), ``placement`` and ``fleet`` (where it runs),
``rules`` (whether it fits, and when), ``kv`` (identity, shape and ledgers of KV), ``block_hash``, ``rng``, ``files``
(models and adapters on disk).
"""
