"""Names of models: digests, revisions, adapters, tokenizers, and whether a grammar can be used with them.

Read in this order: ``settings``, ``catalogue``, ``adapters``, ``aliases``, ``model_set``,
``served_model``, ``shelf`` (models that come and go with their records), ``live_revisions``, ``grammar_check``,
``grammar_sandbox``, ``watermark_policy``.
"""
