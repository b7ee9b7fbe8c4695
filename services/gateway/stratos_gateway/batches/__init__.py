"""Batches: files of requests that gateways compute when they have room for it, a slice of lines at a time.

Read in this order: ``terms`` (identity of a line), ``calls`` (one line), ``prefixes`` (lines that begin alike),
``gate`` (how many at a time, and the next one), ``slices`` (some lines under a lease), ``finals`` (their files),
``runs``, ``views``, ``routes``, ``settings``.
"""
