"""HTTP itself: server, limits of connections, bodies, server-sent events, errors as JSON.

Read in this order: ``listener``, ``settings`` and ``tls``, ``server``, ``shared_accept``, ``protocol`` and
``limits`` (bounds), ``cycle``, ``body``, ``exchange`` (request id, span, status), ``sse``, ``errors``.
"""
