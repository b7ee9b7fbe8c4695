"""Tenants and their plans: what is stored of them, and the side that writes.

Read in this order: ``plans`` (as JSON), ``tenants`` (the record, its id, blocks of adapters), ``tenant_store``,
``deletion``.
"""
