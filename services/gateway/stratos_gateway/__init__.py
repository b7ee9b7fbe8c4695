"""The HTTP edge: OpenAI API, keys, limits, the token journal of every open stream.

Read in this order: ``endpoints`` (a request from bytes to bytes), ``openai_requests``, ``generation`` (placement,
attempts, recovery), ``journal``, ``session``, ``openai_responses``, ``app``.
"""
