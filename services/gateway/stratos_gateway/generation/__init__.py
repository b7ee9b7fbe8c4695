"""One prompt from placement to the last token.

Read in this order: ``generation``, ``attempt``, ``journal``, ``fanout``, ``placement_reports``, ``embedding_run``.
"""
