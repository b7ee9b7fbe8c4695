"""Routes that compute nothing for tenants: the table of all, probes, usage.

Read in this order: ``table``, ``settings``, ``health``, ``usage``.
"""
