"""HTTP itself: server, limits of connections, bodies, server-sent events, errors as JSON.

Read in this order: ``listener``, ``server``, ``protocol`` and ``limits`` (bounds), ``body``, ``exchange`` (request id,
span, status), ``sse``, ``json_response``, ``errors``.
"""
