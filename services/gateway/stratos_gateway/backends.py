"""The real services and stores of a gateway."""

from __future__ import annotations

from contextlib import AsyncExitStack
from random import Random

from stratos.common.clock import SystemClock
from stratos.rpc.clients.registry import RegistryClient
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.clients.router_addresses import RouterAddresses
from stratos.store.key_store import KeyStore
from stratos.store.redis import open_redis
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.routers.router_set import RouterSet
from stratos_gateway.service import Backends
from stratos_gateway.settings import GatewaySettings


async def open_backends(settings: GatewaySettings, stack: AsyncExitStack, metrics: GatewayMetrics) -> Backends:
    """Connect lazily to routers, registry and Redis; what was opened is closed by ``stack``."""
    addresses, clock = RouterAddresses(settings.router_addresses), SystemClock()
    routers = RouterSet(addresses, RouterClient, settings.routers, metrics, clock, Random())
    stack.push_async_callback(routers.close)
    registry = None
    if settings.registry_address:
        registry = RegistryClient(settings.registry_address)
        stack.push_async_callback(registry.close)
    redis = open_redis(settings.redis_url.get_secret_value())
    stack.push_async_callback(redis.aclose)
    keys = KeyStore(redis, settings.key_pepper.get_secret_value())
    return Backends(
        routers=routers,
        registry=registry,
        authenticator=keys,
        tasks={"api-keys": keys.refresh_forever, "routers": routers.run},
    )
