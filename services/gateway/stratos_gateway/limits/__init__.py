"""A tenant's own limits: requests and tokens per minute, sequences at once, over all gateways.

Read in this order: ``step`` (around a request), ``limiter``, ``settings``, ``bucket`` (one limit as this gateway sees
it, without I/O), ``leaser`` (renews the slices of all of them).
"""
