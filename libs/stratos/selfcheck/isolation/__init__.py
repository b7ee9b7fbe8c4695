"""``stratos admin check-isolation``: proves on a running platform that tenants do not reach one another.

Read in this order: ``callers`` (requests with one key), ``probe_tenants`` (tenants that are made for the check and
deleted after it), ``cache_probe`` (prefix caches), ``acl_probe`` (models), ``admin_probe`` (the admin API),
``ledger_probe`` (usage), ``check`` (all of it).
"""
