"""Routes that compute nothing for tenants: the table of all, probes, usage, kept responses.

Read in this order: ``table``, ``settings``, ``health``, ``usage``, ``receipt``, ``responses``.
"""
