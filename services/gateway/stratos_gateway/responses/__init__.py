"""The Responses API: bodies in, items and events out; and the responses that are kept for the next request.

Read in this order: ``items``, ``requests``, ``output``, ``rendering``, ``stored_items``, ``local``, ``state``,
``sweep``, ``settings``.
"""
