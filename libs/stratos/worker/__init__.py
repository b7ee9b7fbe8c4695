"""Parts of both worker services; a service composes them with a role.

Read in this order: ``service`` and ``wiring`` (composition), ``model_source``, ``context`` (what all parts share),
``engine_client`` (the engine from asyncio), ``records``, ``decode`` (sessions), ``handoff`` (both ends of a KV
hand-off), ``embed``, ``health`` (whether the engine can be trusted), ``sleep``, ``adapter_cache``, ``features`` (what
it offers), ``status``, ``cache_servicer`` (what its prefix cache holds).
"""
