"""Requests that an external OpenAI-compatible endpoint serves, because they would wait too long here.

Read in this order: ``settings``, ``source`` (which requests go there), ``request`` (in which form), ``call`` (and
how much is taken), ``client``, ``events`` (its event stream), ``output`` and ``choice`` (one answer), ``bill``.
"""
