"""Kernels in C++ with a plain C interface that knows addresses and sizes, not torch: one build serves every torch.

Read in this order: ``isa`` and ``build`` (compiling), ``library`` (loading), ``structures``, then ``gemm.h``,
``attention.cpp`` and ``decoder.cpp``.  Callers: ``attention.native``, ``layers.native_*``, ``runner.native_forward``.
"""
