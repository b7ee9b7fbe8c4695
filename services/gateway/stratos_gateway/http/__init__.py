"""HTTP itself: server, limits of connections, bodies, server-sent events, errors as JSON."""
