"""Where state lives outside processes: objects (folder or S3), and records in Redis: tenants, keys, adapters.

Read in this order: ``object_store`` (the contract), ``local_store``, ``s3_store``, ``redis``, ``connections``,
``data_keys``, ``keys``, ``plans``, ``tenants``, ``content`` and ``models`` (their form),
``records`` (what is stored, and the snapshot that every gateway holds), ``tenancy`` and ``key_store`` (make, change and
delete them), ``authentication`` (finds keys in the snapshot), ``counters`` (what tenants have left of their limits,
when keys were last used), ``ledger`` (what requests cost), ``sealed`` (texts of tenants), ``registry`` (weights
of published models), ``served`` (a folder as a bucket).
"""
