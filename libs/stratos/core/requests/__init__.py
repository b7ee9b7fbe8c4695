"""A request from the edge to the engine.

Read in this order: ``terms``, ``records``, ``sampling_params``, ``limits`` (the one table and its validator),
``grammar``, ``tools``, ``watermark``, ``embedding``, ``continuation``.
"""
