"""Transport over TCP with TLS 1.3, for workers on different machines with mTLS on.

Read in this order: ``wire`` (what is on a connection, and how one is made), ``receiver``, ``sender``.

A worker listens on one port for all its sources; each pair has a connection of its own, whose first message names the
pair by a secret of its offer.  Both ends must hold a certificate of a worker of this platform.
"""
