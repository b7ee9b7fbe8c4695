"""Names of models: digests, adapters, tokenizers, and whether a grammar can be used with them.

Read in this order: ``settings``, ``catalogue``, ``adapters``, ``served_model``, ``grammar_check``, ``grammar_sandbox``,
``watermark_policy``.
"""
