"""The real services and stores of a gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack

from stratos.rpc.clients.registry import RegistryClient
from stratos.rpc.clients.router import RouterClient
from stratos.store.key_store import KeyStore
from stratos.store.redis import open_redis
from stratos_gateway.generation.generation import Caller
from stratos_gateway.service import Backends
from stratos_gateway.settings import GatewaySettings


class StoredKeys:
    """Callers from the keys in Redis.

    Args:
        store: with its snapshot of keys seen before.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def authenticate(self, key: str) -> Caller:
        """See ``Authenticator``."""
        tenant = (await self._store.authenticate(key)).tenant
        return Caller(tenant=tenant.name, cache_salt=tenant.cache_salt, priority_class=tenant.priority_class)


async def open_backends(settings: GatewaySettings, stack: AsyncExitStack) -> Backends:
    """Connect lazily to router, registry and Redis; what was opened is closed by ``stack``."""
    router = await stack.enter_async_context(RouterClient(settings.router_address))
    registry = None
    if settings.registry_address:
        registry = RegistryClient(settings.registry_address)
        stack.push_async_callback(registry.close)
    redis = open_redis(settings.redis_url.get_secret_value())
    stack.push_async_callback(redis.aclose)
    keys = KeyStore(redis, settings.key_pepper.get_secret_value())
    return Backends(
        router=router,
        registry=registry,
        authenticator=StoredKeys(keys),
        tasks={"api-keys": keys.refresh_forever},
    )
