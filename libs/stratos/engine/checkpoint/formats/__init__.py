"""Formats of quantised layers: what their configurations say without torch, and readers of their tensors.

Read in this order: ``stored_scheme``, ``bitsandbytes``, ``modelopt`` (what configurations say), ``layer_tensors``,
``nf4``, ``nvfp4`` (the tensors of a layer).
"""
