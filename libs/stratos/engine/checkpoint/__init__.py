"""Model folders: configuration, families, tensor names, weights (safetensors and GGUF).

Read in this order: ``model_config``, ``fields``, ``families``, ``rope_config``, ``weight_schemes``,
``quantisation_config``, ``tensor_names``, ``stored_tensors``, ``quantised_weight``, ``formats``, ``quantised_tensors``,
``rounding``, ``gguf``, ``experts``, ``rotated_rows``, ``loader``, ``kv_scales``.
"""
