"""Entries of a day, those in Redis and those in segments, in the order of their arrival, each one once.

Of one request the entry in Redis is newer than that of any segment, and of segments the last one is.  Redis is read
first: what leaves it after that is in a segment that is read after.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.entry import LedgerEntry, entry_from_text
from stratos.core.ledger.segments import Block, Place, SegmentRef
from stratos.store.counters.guard import GuardedReads, StoreId, any_store
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.entry_order import EntryOrder
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

PAGE = 500
_DAY_MS = 24 * 3600 * 1000
START: Place = (-1, "")
"""Before all entries."""
_Found = dict[Place, str]


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Some entries of a day."""

    entries: list[LedgerEntry]
    following: Place | None
    """The last of them, after which the next page begins; ``None`` at the end."""


class EntryReader:
    """Reads.

    Args:
        redis: with decoded answers.
        config: where records lie.
        segments: where what has left Redis is; ``None`` where nothing leaves it.
        store_id: of the store that is read; ``None`` before it is known.
    """

    def __init__(
        self, redis: Redis, config: RecordStoreConfig, segments: SegmentStore | None, store_id: StoreId = any_store
    ) -> None:
        self._redis: Any = redis
        self._head = f"{config.prefix}:ledger"
        self._segments = segments
        self._chain = Chain(redis, config, store_id)
        self._order = EntryOrder(redis, config)
        self._reads = GuardedReads(redis, config, store_id)

    async def page(self, tenant: str, day: str, after: Place = START, limit: int = PAGE) -> EntryPage:
        """Entries of a day after a place; raises ``DependencyDown``."""
        await self._reads.check()
        await self._order.make(tenant, [day])
        found, end = await self._in_redis(tenant, day, after, limit)
        if self._segments is not None:
            _, refs = await self._chain.refs_of_day(day)
            sealed = await self._in_segments(self._segments, refs, tenant, _DayRange.of(day, after), limit)
            found = sealed | found
        places = sorted(place for place in found if end is None or place <= end)[:limit]
        entries = await asyncio.to_thread(lambda: [entry_from_text(place[1], tenant, found[place]) for place in places])
        return EntryPage(entries, places[-1] if len(places) == limit else end)

    async def all(self, tenant: str, day: str) -> AsyncIterator[LedgerEntry]:
        """The entries of a day, of which a page at a time is in memory."""
        async for entries in self.pages(tenant, day):
            for entry in entries:
                yield entry

    async def pages(self, tenant: str, day: str) -> AsyncIterator[Sequence[LedgerEntry]]:
        """The same, a page at a time."""
        after: Place | None = START
        while after is not None:
            page = await self.page(tenant, day, after)
            yield page.entries
            after = page.following

    async def find(self, tenant: str, day: str, place: Place) -> LedgerEntry | None:
        """The entry of one request."""
        await self._reads.check()
        with translate_redis_errors():
            text = await self._redis.hget(f"{self._head}:entries:{tenant}:{day}", place[1])
        if text is None and self._segments is not None:
            _, refs = await self._chain.refs_of_day(day)
            sealed = await self._segments.find(refs, tenant, place)
            text = None if sealed is None else sealed[1].text
        return None if text is None else entry_from_text(place[1], tenant, text)

    async def _in_redis(self, tenant: str, day: str, after: Place, limit: int) -> tuple[_Found, Place | None]:
        """The first entries of Redis after a place, and up to where they are all; ``None`` is the end.

        Their places come in one answer: between two of them some may leave Redis, and those behind would move up.
        """
        num, order = limit + 1, f"{self._head}:order:{tenant}:{day}"
        while True:
            with translate_redis_errors():
                part: list[tuple[str, float]] = await self._redis.zrange(
                    order, after[0], "inf", byscore=True, withscores=True, offset=0, num=num
                )
            places = [place for name, score in part if (place := (int(score), name)) > after][:limit]
            if len(places) == limit or len(part) < num:
                break
            num *= 2  # of the millisecond of that place there are many
        if not places:
            return {}, None
        with translate_redis_errors():
            texts: list[str | None] = await self._redis.hmget(
                f"{self._head}:entries:{tenant}:{day}", [name for _, name in places]
            )
        found = {place: text for place, text in zip(places, texts, strict=True) if text is not None}
        return found, places[-1] if len(places) == limit else None

    async def _in_segments(
        self, segments: SegmentStore, refs: Sequence[SegmentRef], tenant: str, days: _DayRange, limit: int
    ) -> _Found:
        """The first entries of all segments after a place: blocks in their order, until no other can have one."""
        blocks: list[tuple[int, int, SegmentRef, Block]] = []
        for ref in refs:
            index = await segments.index(ref)
            blocks += [
                (block.first_ms, ref.number, ref, block)
                for block in index.blocks
                if block.tenant == tenant and days.first_ms <= block.last_ms and block.first_ms < days.end_ms
            ]
        blocks.sort(key=lambda one: one[:2])
        found: dict[Place, tuple[int, str]] = {}
        last_ms: int | None = None
        for first_ms, number, ref, block in blocks:
            if last_ms is not None and first_ms > last_ms:
                break
            for line in await segments.lines(ref, block):
                if days.has(line.place) and found.get(line.place, (-1, ""))[0] < number:
                    found[line.place] = number, line.text
            if len(found) >= limit:
                kept = sorted(found)[:limit]
                found, last_ms = {place: found[place] for place in kept}, kept[-1][0]
        return {place: text for place, (_, text) in found.items()}


@dataclass(frozen=True, slots=True)
class _DayRange:
    """Part of a day after a place."""

    after: Place
    begin_ms: int

    @classmethod
    def of(cls, day: str, after: Place) -> _DayRange:
        begin = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
        return cls(after, int(begin.timestamp()) * 1000)

    @property
    def first_ms(self) -> int:
        return max(self.begin_ms, self.after[0])

    @property
    def end_ms(self) -> int:
        return self.begin_ms + _DAY_MS

    def has(self, place: Place) -> bool:
        return place > self.after and self.begin_ms <= place[0] < self.end_ms
