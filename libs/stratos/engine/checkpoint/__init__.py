"""Hugging Face model folders: configuration, families, tensor names, weights (safetensors only).

Read in this order: ``model_config``, ``fields``, ``families``, ``rope_config``, ``tensor_names``, ``stored_tensors``,
``loader``, ``kv_scales``.
"""
