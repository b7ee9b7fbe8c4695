"""Building blocks of decoders: linear layers, operations between them, experts, rotary embeddings.

Read in this order: ``ops`` and ``linear`` (contracts, and what torch has), ``native_ops`` and ``native_linear`` (C++),
``triton_ops`` and ``triton_linear`` (GPU), ``invariance`` (exact mode without our own kernels), ``thread_scope``,
``mlp``, ``moe``, ``rotary``.
"""
