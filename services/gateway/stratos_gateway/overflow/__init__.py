"""Requests that an external OpenAI-compatible endpoint serves, because they would wait too long here.

Read in this order: ``settings``, ``request`` (which requests can go there, and as what), ``events`` (its event stream),
``output`` (one request there), ``client``.
"""
