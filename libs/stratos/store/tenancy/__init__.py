"""Tenants and their plans: the side that writes.

Read in this order: ``tenant_store``, ``deletion``.
"""
