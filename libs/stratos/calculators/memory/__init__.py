"""Memory of a model on its devices: weights, KV, and how many sequences fit.

Read in this order: ``schemes`` (bytes of an element), ``kv``, ``gpu_memory``.
"""
