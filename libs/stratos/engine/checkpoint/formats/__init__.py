"""Formats of quantised layers: what their configurations say without torch, and readers of their tensors.

Read in this order: ``stored_scheme``, ``layer_tensors``, ``nf4``, ``nvfp4``, ``bitsandbytes``, ``modelopt``.
"""
