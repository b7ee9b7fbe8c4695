"""Weights in GGUF files: names, blocks as floats or codes, tensors as the loader reads them.

Read in this order: ``names``, ``kept_codes``, ``blocks``, ``tensors``.
"""
