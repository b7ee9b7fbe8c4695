"""The real services and stores of a gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack

from stratos.rpc.clients.registry import RegistryClient
from stratos.rpc.clients.router import RouterClient
from stratos.store.key_store import KeyStore
from stratos.store.redis import open_redis
from stratos_gateway.service import Backends
from stratos_gateway.settings import GatewaySettings


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
        authenticator=keys,
        tasks={"api-keys": keys.refresh_forever},
    )
