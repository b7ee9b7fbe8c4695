"""Where state lives outside processes: objects (folder or S3), Redis, API keys.

Read in this order: ``object_store`` (the contract), ``local_store``, ``s3_store``, ``redis``, ``keys``, ``key_store``.
"""
