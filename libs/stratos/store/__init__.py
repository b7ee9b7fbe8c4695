"""Where state lives outside processes: objects (folder or S3), and records in Redis: tenants, API keys, adapters.

Read in this order: ``object_store`` (the contract), ``local_store``, ``s3_store``, ``redis``, ``redis_address``,
``redis_sentinel``, ``keys`` (their form), ``records`` (what is stored, and the snapshot that every gateway holds),
``key_store`` (makes and revokes keys), ``key_check`` (checks them).
"""
