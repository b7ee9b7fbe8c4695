"""Connections to Redis.

Read in this order: ``address`` (which server a URL means), ``sentinel`` (the master that sentinels name), ``packing``
(bytes of commands).
"""
