"""Tenants and their plans: the side that writes.

Read in this order: ``tenant_keyring`` (their data keys), ``tenant_store``, ``deletion``, ``sub_keys`` (from the
snapshot).
"""
