"""GGUF files, checked completely without reading a tensor: header, metadata, tensors, parts of a split model.

Read in this order: ``block_types``, ``header_bytes``, ``metadata``, ``header``, ``parts``, ``decoder_fields``,
``rope_factors``.
"""
