"""KV blocks: which are held, which are cached under a hash, which wait on the host. Never imports torch.

Read in this order: ``block_manager``, ``prefix_cache``, ``block_tables``, ``admission``, ``fences``, ``host_tier``,
``cache`` (all of them together).
"""
