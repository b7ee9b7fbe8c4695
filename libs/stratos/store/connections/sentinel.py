"""Connections to the master that Redis Sentinel names, now and after each failover."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from stratos.store.connections.packing import with_quick_packing

ASK_TIMEOUT_S = 0.2
"""Of one sentinel: they are near, and the next one knows the same."""
DISCOVERY_TIMEOUT_S = 0.4
"""Of all of them, so that a caller has its answer within a second."""


class _Sentinels(Sentinel):
    async def discover_master(self, service_name: str) -> Any:
        """Address of the master; those that answer are asked first from then on."""
        try:
            async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
                return await super().discover_master(service_name)
        except TimeoutError:
            raise MasterNotFoundError(f"no sentinel names the master of {service_name!r} in time") from None


class _MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """Looks the master up for each connection; waits for a free one like any other pool of ours."""


class _MasterClient(Redis):
    sentinels: Sentinel

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the connections to the master, and those to the sentinels."""
        await super().aclose(close_connection_pool)
        await self.sentinels.aclose()


def open_master(
    sentinels: Sequence[tuple[str, int]], service: str, *, options: dict[str, Any], sentinel_options: dict[str, Any]
) -> Redis:
    """A client of the master of ``service``; nothing is contacted yet.

    Args:
        sentinels: host and port each.
        service: name of the master there.
        options: of connections to the master, and of their pool.
        sentinel_options: of connections to sentinels.
    """
    bounds = {
        "socket_timeout": ASK_TIMEOUT_S,
        "socket_connect_timeout": ASK_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
    }
    manager: Any = _Sentinels  # redis-py leaves both without types
    pool: Any = _MasterPool
    sentinels_of_service = manager(sentinels, sentinel_kwargs={**sentinel_options, **bounds})
    connections = with_quick_packing(pool(service, sentinels_of_service, **options))
    client = cast("_MasterClient", _MasterClient.from_pool(connections))
    client.sentinels = sentinels_of_service
    return client
