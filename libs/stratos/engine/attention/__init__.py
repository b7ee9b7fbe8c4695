"""Paged attention: one contract over one KV pool, several kernels.

Read in this order: ``backend`` (the contract), ``projections``, ``torch_base``, ``paged``, ``tiled`` (exact mode),
``sinks`` (StreamingLLM), then ``native`` and ``native_sinks`` (C++) and ``triton_paged`` (GPU).
"""
