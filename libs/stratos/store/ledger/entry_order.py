"""The order of a day's entries, for days that a version without it has written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.entry import entry_from_text
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_SCAN_COUNT = 500
_DAYS_PER_SLICE = 256


class EntryOrder:
    """Reads and writes.

    Args:
        redis: with decoded answers.
        config: where records lie.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig) -> None:
        self._redis: Any = redis
        self._head = f"{config.prefix}:ledger"

    async def make(self, tenant: str, days: Sequence[str]) -> None:
        """Put entries that have no place into the order of their day, and the day among those that are sealed."""
        for begin in range(0, len(days), _DAYS_PER_SLICE):
            for day in await self._unordered(tenant, days[begin : begin + _DAYS_PER_SLICE]):
                await self._order(tenant, day)

    async def _unordered(self, tenant: str, days: Sequence[str]) -> list[str]:
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for day in days:
                    pipeline.hlen(f"{self._head}:entries:{tenant}:{day}")
                    pipeline.zcard(f"{self._head}:order:{tenant}:{day}")
                sizes: list[int] = await pipeline.execute()
        return [day for place, day in enumerate(days) if sizes[2 * place] > sizes[2 * place + 1]]

    async def _order(self, tenant: str, day: str) -> None:
        name, order, cursor = f"{self._head}:entries:{tenant}:{day}", f"{self._head}:order:{tenant}:{day}", 0
        while True:
            with translate_redis_errors():
                left_s = await self._redis.ttl(name)
                cursor, found = await self._redis.hscan(name, cursor, count=_SCAN_COUNT)
                places = {
                    request_id: entry_from_text(request_id, tenant, text).tag.arrived_unix_ms
                    for request_id, text in found.items()
                }
                async with self._redis.pipeline(transaction=True) as pipeline:
                    if places:
                        pipeline.zadd(order, places)
                        pipeline.sadd(f"{self._head}:open", f"{tenant} {day}")
                    if left_s > 0:
                        pipeline.expire(order, left_s)
                    await pipeline.execute()
            if not int(cursor):
                return
