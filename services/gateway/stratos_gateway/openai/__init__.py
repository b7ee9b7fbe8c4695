"""The OpenAI API as data: bodies in, chunks and responses out; nothing here waits.

Read in this order: ``fields``, ``messages``, ``tools``, ``template_use``, ``requests``, ``chunks``, ``rendering``,
``answers``, ``reasoning_tokens``, ``chat_events``, ``prompt_logprobs``, ``embedding_requests``.
"""
