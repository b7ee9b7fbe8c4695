"""Rows of the report: each module has ``measure(conditions) -> RowResult``.

Read in this order: ``kv_cache``, ``contiguous_cache``, ``block_table``, ``kv_concurrency``, ``sampling``,
``sampling_quality``, ``continuous_batching``, ``open_loop``, ``adapters``, ``all_on``, ``batch_sweep``,
``chunked_prefill``, ``prefix_sharing``, ``queueing``, ``fleets`` (behind our router), ``calculated`` (run
nothing).
"""
