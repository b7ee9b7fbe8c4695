"""Generation requests of gateways: sessions, request table, where a prompt is computed.

Read in this order: ``records``, ``servicer``, ``session``, ``request_table``, ``prefill_policy``, ``checks``.
"""
