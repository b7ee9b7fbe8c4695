"""One route from bytes to bytes.

Read in this order: ``edge``, ``generation``, ``preparation``, ``embedding``, ``settings``, ``health``.
"""
