"""Plans, tenants, API keys, models, adapters and blocks as versioned records, and their snapshot in every gateway.

Read in this order: ``record`` (what one record is), ``values`` (its content as JSON), ``followed_snapshot`` (what a
process knows of all records, and when it may trust a store), ``record_store`` (the records in Redis), ``scripts`` (its
changes, each one atomic), ``audit`` and ``writer`` (changes by people), ``settings``, ``snapshot_copy`` (a snapshot as
a file), ``follower`` (keeps a snapshot up to date), ``copy_keeper`` (and its file), ``manifest`` (the adapters in the
object store), ``adoption`` (a store's id, and how an emptied store is filled), ``tenant_lookup`` (tenants of a
snapshot).
"""
