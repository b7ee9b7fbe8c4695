"""Rows of the report: each module has ``measure(conditions) -> RowResult``.

Read in this order: ``kv_cache``, ``contiguous_cache``, ``block_table``, ``kv_concurrency``, ``sampling``,
``sampling_quality``, ``continuous_batching``, ``contradictions``.
"""
