"""Kernels in C++ with a plain C interface: ``build`` compiles, ``library`` loads, ``ops`` are layer operations.

The sources know nothing of torch: they get addresses and sizes, so one build serves every torch.  Paged attention
over them is ``stratos.engine.attention.native``.
"""
