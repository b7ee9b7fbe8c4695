"""What both worker services are made of; a service composes it with a role.

Read in this order: ``service`` (composition), ``engine_client`` (the engine from asyncio), ``decode`` (sessions),
``handoff`` (both ends of a KV hand-off), ``embed``, ``adapter_cache``, ``status``.
"""
