"""The HTTP edge: OpenAI API, keys, limits, the token journal of every open stream.

Read in this order: ``wiring`` (the tables of steps, sources and routes), ``answering`` (a request from bytes to bytes),
``preparation``, ``openai``, ``models``; the steps ``policies``, ``limits``, ``ledger``, ``observe``, ``rollouts``; the
sources ``response_cache``, ``overflow``, ``generation`` (placement, attempts, recovery) with ``routers`` and
``sessions``, ``embedding``; ``access``, ``oidc``, ``routes``, ``admin``, ``http``, ``app``, ``backends``, ``parts``,
``service``.
"""
