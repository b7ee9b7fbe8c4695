"""Typed clients of our services.

Read in this order: ``channel`` (how a connection is made), ``channel_pool`` (one per peer), ``router_addresses``
(which routers there are), ``router``, ``registry``.
"""
