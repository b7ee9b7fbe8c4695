"""Texts of tenants in Redis and the object store, sealed with sub-keys of their data keys, which neither ever sees.

Read in this order: ``answer_store``, ``response_store``, ``response_scripts``, ``file_writer``, ``file_store``,
``batch_store``, ``batch_scripts``, ``stream_store``, ``stream_scripts``, ``file_rewrites`` (what has a destroyed data
key in it leaves Redis' own files).
"""
