"""Texts of tenants in Redis, sealed with sub-keys of their data keys, which Redis never sees.

Read in this order: ``answer_store``, ``response_store``, ``response_scripts``, ``stream_store``, ``stream_scripts``,
``file_rewrites`` (what has a destroyed data key in it leaves Redis' own files).
"""
