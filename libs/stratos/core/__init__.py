"""Records and rules that services and libraries share; no I/O, no torch.

Read in this order: ``requests`` (what a tenant asks for), ``kv`` (identity, shape and ledgers of KV), ``placement``
and ``fleet`` (where it runs), ``block_hash``, ``rng``, ``files`` (what models and adapters on disk must look like).
"""
