"""The HTTP edge: OpenAI API, keys, limits, the token journal of every open stream.

Read in this order: ``routes`` (a request from bytes to bytes), ``openai``, ``generation`` (placement, attempts,
recovery), ``sessions``, ``models``, ``policies``, ``access``, ``limits``, ``admin``, ``http``, ``app``, ``service``.
"""
