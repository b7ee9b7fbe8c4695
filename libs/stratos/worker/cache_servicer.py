"""gRPC edge of ``CacheService``: what the prefix cache holds, for routers that place requests by it, and what
it is to drop.

The engine numbers the changes and keeps the last ones in a ring.  A stream has a place in it and fetches what came
after; the step loop knows of no stream.  A reader that is slower than the ring gets the whole cache again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from stratos.api.worker.v1 import cache_pb2, cache_pb2_grpc
from stratos.common.errors import BadRequest
from stratos.core.step_watch import PROGRESS_INTERVAL_S
from stratos.rpc.codec.cache import CACHE_CHANGES
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.status import StatusFeed

IDLE_WAKES = 8
"""Wakes without a change until an empty message shows that the stream lives: 2 s at most."""
MAX_STORED = 4096
"""Names in one message: some 32 KiB, which neither end works on for long."""


class CacheServicer(cache_pb2_grpc.CacheServiceServicer):
    """Serves routers.

    Args:
        feed: wakes the streams after steps.
        engine: of this worker.
        incarnation: of this process.
    """

    def __init__(self, feed: StatusFeed, engine: Callable[[], EngineClient], incarnation: str) -> None:
        self._feed = feed
        self._engine = engine
        self._incarnation = incarnation

    async def WatchCache(
        self, request: cache_pb2.WatchCacheRequest, context: Any
    ) -> AsyncIterator[cache_pb2.WatchCacheResponse]:
        """Send what the caller lacks, then changes at most 20 times a second."""
        after = request.after if request.incarnation == self._incarnation else None
        num_idle = IDLE_WAKES
        async with aclosing(self._feed.wakes(PROGRESS_INTERVAL_S)) as wakes:
            async for _ in wakes:
                num_idle += 1
                if self._engine().status().last_cache_change == after and num_idle < IDLE_WAKES:
                    continue
                changes = await self._engine().cache_changes(after)
                num_idle = 0
                for part in changes.parts(MAX_STORED):
                    yield CACHE_CHANGES.to_pb(part, incarnation=self._incarnation)
                after = changes.last

    async def ForgetTenant(
        self, request: cache_pb2.ForgetTenantRequest, context: Any
    ) -> cache_pb2.ForgetTenantResponse:
        """The tenant was deleted, so nothing of it may stay."""
        if not request.tenant:
            raise BadRequest("name a tenant")
        num_forgotten = await self._engine().forget_tenant(request.tenant)
        return cache_pb2.ForgetTenantResponse(num_forgotten=num_forgotten)
