"""The admin API on a port of its own: plans, tenants, keys, blocks, policies, templates, models, the audit log.

Read in this order: ``settings``, ``content_records`` (policies and templates, checked), ``declaration`` (what a file of
tenants says, and how it differs from what is), ``views`` (records as JSON), ``key_bounds`` (what a key may
make), ``fields`` (bodies, checked),
``ledger_routes``, ``model_routes``, ``routes``, ``app`` (the server).
"""
