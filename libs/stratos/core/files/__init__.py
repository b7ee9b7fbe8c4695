"""Folders of models and adapters, checked without loading a tensor.

Read in this order: ``safetensors_header``, ``gguf``, ``handed_digest``, ``model_files``, ``model_texts``,
``adapter_config``, ``adapter_files``, ``embedding_files``.
"""
