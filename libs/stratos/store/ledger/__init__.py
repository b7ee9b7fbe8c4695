"""The ledger in Redis and in segments, and what a gateway keeps on disk while Redis is away.

Read in this order: ``scripts``, ``writing`` (each entry once), ``memory_share`` (what is left for other records),
``ledger_store``, ``usage_reader`` (sums), ``spool``; then ``chain`` (what has left Redis), ``segment_store``,
``sealer``, ``entry_reader``, and ``recovery`` (when Redis was lost).
"""
