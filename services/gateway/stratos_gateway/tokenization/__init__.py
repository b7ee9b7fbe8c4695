"""Texts and conversations -> token ids and back, by the served model's own tokenizer; nothing is generated or billed.

Read in this order: ``requests`` (bodies), ``preparation`` (ids, in a thread where there are many), ``source`` (the
answer of a route that needs no worker), ``endpoints`` (the routes).
"""
