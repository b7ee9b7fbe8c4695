"""Entries in Redis that no segment has yet: how many there are, from when, and what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import date, timedelta
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.segments import SegmentLine
from stratos.store.counters.guard import GuardedReads, StoreId, any_store
from stratos.store.ledger.entry_order import EntryOrder
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.tenants import is_tenant_id

_READ_LINES = 256
TenantDay = tuple[str, str]
"""A tenant, by its id, and a day."""


class UnsealedEntries:
    """Reads; every method raises ``DependencyDown`` where Redis does not answer.

    Args:
        redis: with decoded answers.
        config: where records lie.
        store_id: of the store that is followed; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, store_id: StoreId = any_store) -> None:
        self._redis: Any = redis
        self._head = f"{config.prefix}:ledger"
        self._order = EntryOrder(redis, config)
        self._reads = GuardedReads(redis, config, store_id)

    async def days(self) -> list[TenantDay]:
        """Days with entries, in order; those of a name are of an older version, and move to an id first."""
        await self._reads.check()
        with translate_redis_errors():
            found: set[str] = await self._redis.smembers(f"{self._head}:open")
        days = [(tenant, day) for tenant, _, day in (one.partition(" ") for one in sorted(found))]
        return [(tenant, day) for tenant, day in days if is_tenant_id(tenant)]

    async def count(self, days: Sequence[TenantDay], before_ms: int | None = None) -> int:
        """How many there are, or arrived before a time."""
        end = "+inf" if before_ms is None else f"({before_ms}"
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for tenant, day in days:
                    pipeline.zcount(f"{self._head}:order:{tenant}:{day}", "-inf", end)
                return sum(await pipeline.execute())

    async def oldest_ms(self, days: Sequence[TenantDay]) -> int:
        """Arrival of the first one; 0 where there is none."""
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for tenant, day in days:
                    pipeline.zrange(f"{self._head}:order:{tenant}:{day}", 0, 0, withscores=True)
                found = await pipeline.execute()
        return min((int(first[0][1]) for first in found if first), default=0)

    async def lines(self, tenant: str, day: str, before_ms: int) -> AsyncIterator[list[SegmentLine]]:
        """Entries of a day that arrived before a time, some at a time; one that has left since has no text."""
        with translate_redis_errors():
            places: list[tuple[str, float]] = await self._redis.zrangebyscore(
                f"{self._head}:order:{tenant}:{day}", "-inf", f"({before_ms}", withscores=True
            )
        for begin in range(0, len(places), _READ_LINES):
            part = places[begin : begin + _READ_LINES]
            ids = [request_id for request_id, _ in part]
            with translate_redis_errors():
                async with self._redis.pipeline(transaction=True) as pipeline:
                    for name in ("entries", "corrects"):
                        pipeline.hmget(f"{self._head}:{name}:{tenant}:{day}", ids)
                    texts, corrected = await pipeline.execute()
            lines = []
            for (request_id, ms), text, old in zip(part, texts, corrected, strict=True):
                number, _, corrects = (old or "-1 ").partition(" ")
                lines.append(SegmentLine(int(ms), request_id, tenant, text or "", corrects, int(number)))
            yield lines

    async def order_older(self, today: date, num_days: int) -> None:
        """Find entries of the last days that gateways of a version without an order have written."""
        await self._reads.check()
        with translate_redis_errors():
            tenants: set[str] = await self._redis.smembers(f"{self._head}:tenants")
        days = [(today + timedelta(days=1 - n)).isoformat() for n in range(num_days)]
        for tenant in filter(is_tenant_id, tenants):
            await self._order.make(tenant, days)
