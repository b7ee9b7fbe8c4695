"""Kernels in C++ with a plain C interface that knows addresses and sizes, not torch: one build serves every torch.

Callers are ``attention.native``, ``layers.native_linear``, ``layers.native_ops``, ``runner.native_forward`` and
``sampling.native_sampler``.
Read in this order: ``isa`` and ``build`` (compiling), ``library`` (loading), ``looks`` (before it), ``structures``,
then ``gemm.h``, ``attention.cpp``, ``experts.cpp`` and ``decoder.cpp``; with AMX, ``tile_order.h``, ``amx.h``,
``tile_panel.h``, ``byte_tiles.h``, ``code_tiles.h`` and ``k_tiles.h``.  The sampler: ``noise.h``, ``row_edits.h``,
``draw.h``, ``top_values.h`` and ``sampling.cpp``.
"""
