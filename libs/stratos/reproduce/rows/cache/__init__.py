"""Rows about where KV lies.

Read in this order: ``kv_cache``, ``contiguous_cache``, ``block_table``, ``kv_concurrency``.
"""
