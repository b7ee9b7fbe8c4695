"""Batches: files of requests that gateways compute when they have room for it, a slice of lines at a time.

Read in this order: ``terms`` (identity of a line), ``calls`` (one line), ``gate`` (how many at a time),
``slices`` (some lines under a lease), ``finals`` (their files), ``runs``, ``views``, ``routes``, ``settings``.
"""
