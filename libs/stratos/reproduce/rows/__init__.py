"""Rows of the report: each module has ``measure(conditions) -> RowResult``.

Read in this order: ``cache`` (where KV lies), ``sampling``, ``sampling_quality``, ``continuous_batching``,
``open_loop``, ``adapters``, ``all_on``, ``batch_sweep``, ``chunked_prefill``, ``attention``, ``batch_grid``, ``peers``,
``prefix_sharing``, ``queueing``, ``promises``, ``fleets`` (behind our router), ``processes`` (real workers),
``calculated`` (run nothing).
"""
