"""One prompt from placement to the last token.

Read in this order: ``generation``, ``recovery`` (what follows a lost attempt), ``suspicion`` (whether it is to blame),
``attempt``, ``transcript`` and ``journal`` (what was emitted), ``prefix_names`` (what the router is told of a prompt),
``fanout`` (several prompts), ``platform``, then ``embedding_run`` and ``embedding_client``.
"""
