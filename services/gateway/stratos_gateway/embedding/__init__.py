"""The embeddings route: its bodies made ready, its vectors computed by prefill workers, its answers written.

Read in this order: ``preparation``, ``source``, ``run`` (groups of inputs, each tried until it has vectors),
``client``.
"""
