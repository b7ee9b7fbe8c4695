"""What a model name means: digests, adapters, tokenizers, and whether a grammar can be used with it.

Read in this order: ``settings``, ``catalogue``, ``served_model``, ``grammar_check``, ``grammar_sandbox``,
``watermark_policy``.
"""
