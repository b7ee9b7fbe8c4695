"""Hugging Face model folders: configuration, families, tensor names, weights (safetensors only).

Read in this order: ``model_config``, ``fields``, ``families``, ``rope_config``, ``weight_schemes``,
``quantisation_config``, ``tensor_names``, ``stored_tensors``, ``quantised_weight``, ``quantised_tensors``,
``rounding``, ``loader``, ``kv_scales``.
"""
