"""Hugging Face model folders: configuration, families, tensor names, weights (safetensors only).

Read in this order: ``config``, ``families``, ``tensor_names``, ``stored_tensors``, ``loader``.
"""
