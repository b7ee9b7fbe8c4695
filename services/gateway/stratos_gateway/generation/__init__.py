"""One prompt from placement to the last token; the prompts of a request together are a source of its answer.

Read in this order: ``source`` (a request), ``fanout`` (its prompts), ``generation`` (one of them), ``recovery`` (after
a lost attempt), ``suspicion`` (whether it is to blame), ``attempt``, ``transcript`` and ``journal`` (tokens that were
emitted), ``prompt_names`` (hashes of a prompt, for routers), ``fleet_access``.
"""
