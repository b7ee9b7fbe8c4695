"""WebSocket on /v1/responses: one more way for the same requests, each of which runs as a POST of its own.

Read in this order: ``frames`` (bytes to messages), ``connection`` (a socket with its bounds), ``turns`` (one response),
``session`` (one after the other), ``route`` (who may open one, and how many), ``settings``.
"""
