"""Generation requests of gateways: sessions, request table, where a prompt is computed. Records: ``worker.records``.

Read in this order: ``servicer``, ``session``, ``request_table``, ``intents``, ``prefill_policy``, ``checks``,
``latencies``, ``spans``.
"""
