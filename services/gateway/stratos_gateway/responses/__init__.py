"""The Responses API as data: bodies in, items and events out; nothing here waits.

Read in this order: ``items``, ``requests``, ``output``, ``rendering``.
"""
