"""The OpenAI API as data: bodies in, chunks and responses out; nothing here waits.

Read in this order: ``fields``, ``requests``, ``chunks``, ``responses``, ``prompt_logprobs``,
``embedding_requests``.
"""
