"""Tables of the engine, one for each kind of work. Never imports torch.

Read in this order: ``generations``, ``prefill_jobs``, ``reservations`` (hand-offs), ``embeddings``, ``grammars``,
``context``.
"""
