"""The admin API on a port of its own: plans, tenants, keys, blocks, policies, templates, the audit log.

Read in this order: ``settings``, ``content_records`` (policies and templates, checked), ``declaration`` (what a file of
tenants says, and how it differs from what is), ``views`` (records as JSON), ``fields`` (bodies, checked),
``ledger_routes``, ``routes``, ``app`` (the server).
"""
