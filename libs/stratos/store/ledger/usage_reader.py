"""Sums and entries of tenants, read beside what the platform lives of: a few connections of its own, slice by slice,
in threads.

A day has as many fields as the tenant has models, adapters and API keys, so no command reads all of a large one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import BadRequest
from stratos.core.ledger.entry import LedgerEntry, summed_key
from stratos.core.ledger.segments import Place
from stratos.core.ledger.sums import UsageGroup, keep_fields, table_of_day
from stratos.core.ledger.violations import spans_of_day
from stratos.core.ledger.windows import PromiseWindow
from stratos.store.counters.guard import GuardedReads, StoreId, any_store
from stratos.store.ledger.entry_reader import START, EntryPage, EntryReader
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.window_store import missed_key, windows_of_day
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

MAX_CONNECTIONS = 4
"""Of the client that it is made with: as many questions are answered at a time."""
MAX_GROUPS = 20_000
MAX_TAGGED_ENTRIES = 200_000
"""Entries that are read for one table by cost tags, of which there are no sums."""
_DAYS_PER_SLICE = 4
_FIELDS_PER_TURN = 256
"""Asked for at a time: the client reads an answer of so many in some 2 ms, for which the event loop does nothing else.
Small days come whole: each has 128 fields at most."""
MAX_PAGE_ENTRIES = 2000
"""Length of a page of entries."""

Groups = dict[UsageGroup, Counter[str]]
Spans = dict[tuple[str, int], Counter[str]]


class UsageReader:
    """Reads.

    Args:
        redis: with decoded answers; not the client of anything else.
        config: where records lie.
        store_id: of the store that is read; ``None`` before it is known.
        segments: where entries are that have left Redis; ``None`` where none leave it.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        store_id: StoreId = any_store,
        segments: SegmentStore | None = None,
    ) -> None:
        self._entries = EntryReader(redis, config, segments, store_id)
        self._redis = redis
        self._reads = GuardedReads(redis, config, store_id)
        self._head = f"{config.prefix}:ledger"

    async def table(self, tenant: str, days: Sequence[str], columns: Sequence[str]) -> Groups:
        """The sums of days, grouped.

        Args:
            tenant: by its id.
            days: that are added up.
            columns: fields of ``UsageGroup`` that are kept apart.

        Raises:
            BadRequest: there are more than ``MAX_GROUPS`` groups.
            DependencyDown: Redis does not answer; or it is not the store.
        """
        found: Groups = {}
        key = keep_fields(*columns)
        for begin in range(0, len(days), _DAYS_PER_SLICE):
            part = days[begin : begin + _DAYS_PER_SLICE]
            stored = await self._read([f"{self._head}:sums:{tenant}:{day}" for day in part])
            await asyncio.to_thread(_add, found, key, part, stored)
        return await asyncio.to_thread(_in_order, found)

    async def table_by_tags(
        self, tenant: str, days: Sequence[str], columns: Sequence[str], tags: Sequence[str]
    ) -> Groups:
        """The entries of days, added up by cost tags and other fields.

        Args:
            tenant: by its id.
            days: that are added up.
            columns: fields of ``UsageGroup`` that are kept apart.
            tags: names of cost tags whose texts are kept apart.

        Raises:
            BadRequest: there are more than ``MAX_TAGGED_ENTRIES`` entries or ``MAX_GROUPS`` groups.
            DependencyDown: Redis does not answer; or it is not the store.
        """
        found: Groups = {}
        key, num = keep_fields(*columns), 0
        for day in days:
            async for entries in self._entries.pages(tenant, day):
                num += len(entries)
                if num > MAX_TAGGED_ENTRIES:
                    text = f"more than {MAX_TAGGED_ENTRIES} requests; ask for fewer days"
                    raise BadRequest(text, param="group_by")
                await asyncio.to_thread(_add_entries, found, key, entries, tags)
        return await asyncio.to_thread(_in_order, found)

    async def spans(self, tenant: str, days: Sequence[str]) -> list[Spans]:
        """The promises of each day, by model and five minutes."""
        stored = await self._read([f"{self._head}:spans:{tenant}:{day}" for day in days])
        return await asyncio.to_thread(lambda: [spans_of_day(one) for one in stored])

    async def missed_windows(self, tenant: str, days: Sequence[str]) -> list[PromiseWindow]:
        """The windows of some days that missed a promised p99, in order of time."""
        stored = await self._read([missed_key(self._head, tenant, day) for day in days])
        return await asyncio.to_thread(lambda: [window for one in stored for window in windows_of_day(one)])

    async def entries_page(self, tenant: str, day: str, after: Place = START) -> EntryPage:
        """Entries of a day by their arrival, after a place."""
        return await self._entries.page(tenant, day, after, MAX_PAGE_ENTRIES)

    def entries(self, tenant: str, day: str) -> AsyncIterator[LedgerEntry]:
        """The entries of a day by their arrival; some are in memory at a time."""
        return self._entries.all(tenant, day)

    async def _read(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Whole hashes, side by side, in pieces that Redis gives without holding others up."""
        await self._reads.check()
        found: list[dict[str, str]] = [{} for _ in names]
        for begin in range(0, len(names), _DAYS_PER_SLICE):
            await self._scan(names, found, dict.fromkeys(range(begin, min(begin + _DAYS_PER_SLICE, len(names))), 0))
        return found

    async def _scan(self, names: Sequence[str], found: list[dict[str, str]], cursors: dict[int, int]) -> None:
        """Read hashes from their cursors on; the loop has its turn between two answers."""
        while cursors:
            count = _FIELDS_PER_TURN // len(cursors)
            with translate_redis_errors():
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for place, cursor in cursors.items():
                        pipeline.hscan(names[place], cursor, count=count)
                    answers: list[Any] = await pipeline.execute()
            following: dict[int, int] = {}
            for place, (cursor, part) in zip(cursors, answers, strict=True):
                found[place].update(part)
                if int(cursor):
                    following[place] = int(cursor)
            cursors = following
            await asyncio.sleep(0)


def _in_order(found: Groups) -> Groups:
    return dict(sorted(found.items()))


def _add_entries(
    found: Groups, key: Callable[[UsageGroup], UsageGroup], entries: Sequence[LedgerEntry], tags: Sequence[str]
) -> None:
    for entry in entries:
        tag = entry.tag
        group = key(UsageGroup(day=entry.day, model=tag.model, adapter=tag.adapter, key_id=summed_key(tag.key_id)))
        group = replace(group, tags=tuple(tag.cost_tags.get(name, "") for name in tags))
        found.setdefault(group, Counter()).update(entry.measures)
    if len(found) > MAX_GROUPS:
        raise BadRequest(f"more than {MAX_GROUPS} rows; ask for fewer days or columns", param="group_by")


def _add(
    found: Groups, key: Callable[[UsageGroup], UsageGroup], days: Sequence[str], stored: Sequence[dict[str, str]]
) -> None:
    for day, one in zip(days, stored, strict=True):
        for group, sums in table_of_day(day, one).items():
            found.setdefault(key(group), Counter()).update(sums)
        if len(found) > MAX_GROUPS:
            raise BadRequest(f"more than {MAX_GROUPS} rows; ask for fewer days or columns", param="group_by")
