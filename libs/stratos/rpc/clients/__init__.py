"""Typed clients of our services.

Read in this order: ``channel`` (options of a connection, health), ``dialer`` and
``rotating_channel`` (how one is made), ``channel_pool`` (one per peer), ``peer_addresses``
(which routers or gateways there are), ``router``,
``registry``, ``gateway`` (its snapshot).
"""
