"""The ledger in Redis.

<prefix>:ledger:entries:<tenant>:<day>   hash, request id -> entry; until it is in a segment (``chain``), or for
                                         ``entries_kept_days`` where there are none
<prefix>:ledger:sums:<tenant>:<day>      hash, group and measure -> number; kept
<prefix>:ledger:spans:<tenant>:<day>     hash, model, five minutes and measure -> number; kept as entries are
<prefix>:ledger:spend:<tenant>           hash, month -> what is due, micro-units; kept
<prefix>:ledger:tenants                  set of all tenants that ever had an entry
<prefix>:ledger:workers                  hash, address -> worker, so that every gateway can ask every worker for counts

Windows of promises are in ``window_scripts``. Entries, sums and spans are read by ``usage_reader``. A tenant is its id,
also after its deletion: what comes late finds its place, and nothing here knows its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry, entry_to_text
from stratos.core.ledger.segments import Place
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.entry_order import EntryOrder
from stratos.store.ledger.entry_reader import EntryReader
from stratos.store.ledger.memory_share import MemoryShare
from stratos.store.ledger.scripts import MOVE, NOTE_WORKERS, WRITE_ENTRY
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.window_store import window_keys, window_of
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_DAY_S = 24 * 3600
_MOVED_DAYS = 400
"""Days up to today that may have entries or sums under the name of a tenant."""
_MAX_LOOKS = 8
"""Looks into segments for one entry: each is in vain where another segment was appended during it."""
_WAITS, _NO_LOOK = "waits", "segments of the ledger could not be read a moment ago"
_MAX_FAILED_LOOKS = 2
"""Looks that fail in one write, each perhaps after a time-out; then the other late entries wait, too."""


@dataclass(frozen=True, slots=True)
class Written:
    """Fate of a written entry."""

    is_new: bool
    """It stands in the ledger; else one of the same request and of no lower rank does."""
    tenant: str
    """Whose it is."""
    month_due: int
    """Amount that the tenant owes for the entry's month so far, micro-units."""
    waits_for: str = ""
    """It is not written, and this is why: a segment that may have it cannot be read now."""


class LedgerStore:
    """Writes and reads.

    Args:
        redis: with decoded answers.
        config: where records lie.
        entries_kept_days: after which single entries are gone from Redis where none are sealed; sums stay.
        store_id: of the store that takes what is written and that is read; ``None`` before it is known.
        share: of Redis's memory; ``None`` takes all of it.
        segments: where entries are that have left Redis; ``None`` where none leave it.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        entries_kept_days: int = 92,
        store_id: StoreId = any_store,
        share: MemoryShare | None = None,
        segments: SegmentStore | None = None,
    ) -> None:
        self._share = share
        self._segments = segments
        self._chain = Chain(redis, config, store_id)
        self._order = EntryOrder(redis, config)
        self._reader = EntryReader(redis, config, segments, store_id)
        self._redis = redis
        self._head = f"{config.prefix}:ledger"
        self._kept_s = entries_kept_days * _DAY_S
        self._write_entry = GuardedScript(redis, config, WRITE_ENTRY, store_id)
        self._note_workers = GuardedScript(redis, config, NOTE_WORKERS, store_id)
        self._move = GuardedScript(redis, config, MOVE, store_id)
        self._reads = GuardedReads(redis, config, store_id)

    async def write(self, entries: Sequence[LedgerEntry], *, looks: bool = True) -> list[Written]:
        """Write entries, each once however often it is written.

        Args:
            entries: any number.
            looks: into segments for what arrived before the horizon; else such an entry waits.

        Raises:
            DependencyDown: Redis does not answer, and some may be written all the same; it is not the store; or the
                ledger has its share of the memory.
        """
        if entries and self._share is not None:
            await self._share.check()
        with translate_redis_errors():
            answers = await self._write(entries, looks)
        return [
            Written(False, entry.tenant, 0, due)
            if outcome == _WAITS
            else Written(outcome != "kept", entry.tenant, int(due))
            for (outcome, due), entry in zip(answers, entries, strict=True)
        ]

    async def _write(self, entries: Sequence[LedgerEntry], looks: bool) -> list[tuple[str, str]]:
        answers = await self._send((entry, _Look()) for entry in entries)
        for _ in range(_MAX_LOOKS):
            late = [place for place, (outcome, _) in enumerate(answers) if outcome == "late"]
            if not late:
                return answers
            found = await self._looks([entries[place] for place in late]) if looks else [_NO_LOOK] * len(late)
            seen = [(place, look) for place, look in zip(late, found, strict=True) if isinstance(look, _Look)]
            for place, look in zip(late, found, strict=True):
                if isinstance(look, str):
                    answers[place] = _WAITS, look
            sent = await self._send((entries[place], look) for place, look in seen)
            for (place, _), answer in zip(seen, sent, strict=True):
                answers[place] = answer
        raise DependencyDown("segments of the ledger are appended faster than they can be read")

    async def _looks(self, entries: Sequence[LedgerEntry]) -> list[_Look | str]:
        """A look for each entry, or why there is none: what cannot be read holds up no other entry."""
        found: list[_Look | str] = []
        num_failed, problem = 0, ""
        for entry in entries:
            try:
                found.append(problem if num_failed == _MAX_FAILED_LOOKS else await self._look(entry))
            except DependencyDown as error:
                num_failed, problem = num_failed + 1, error.message
                found.append(problem)
        return found

    async def _send(self, entries: Iterable[tuple[LedgerEntry, _Look]]) -> list[tuple[str, str]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for entry, look in entries:
                await self._write_entry(self._keys(entry), self._args(entry, look), pipeline=pipeline)
            answers: list[tuple[str, str]] = await pipeline.execute()
        return answers

    async def _look(self, entry: LedgerEntry) -> _Look:
        """Look into segments for a request that may be in one."""
        if self._segments is None:
            raise DependencyDown("entries of this time are in segments, and this gateway has no object store")
        num_segments, refs = await self._chain.refs_of_day(entry.day)
        found = await self._segments.find(refs, entry.tenant, (entry.tag.arrived_unix_ms, entry.request_id))
        if found is None:
            return _Look(num_segments)
        return _Look(num_segments, found[0], found[1].text)

    async def spend(self, tenant: str, month: str) -> int:
        """Amount that a tenant owes for a month so far, micro-units."""
        await self._reads.check()
        with translate_redis_errors():
            return int(await self._redis.hget(f"{self._head}:spend:{tenant}", month) or 0)

    async def find(self, tenant: str, day: str, place: Place) -> LedgerEntry | None:
        """The entry of one request by day, and by arrival and request id."""
        return await self._reader.find(tenant, day, place)

    async def tenants(self) -> list[str]:
        """All tenants that ever had an entry, in order."""
        await self._reads.check()
        with translate_redis_errors():
            found: Any = await self._redis.smembers(f"{self._head}:tenants")
        return sorted(found)

    async def move(self, name: str, tenant: str) -> int:
        """Give a ledger of an older version, which goes by a name, to a tenant by its id; returns how many days it had.

        Raises:
            DependencyDown: Redis does not answer; or it is not the store.
        """
        today = datetime.now(UTC).date() + timedelta(days=1)  # the clock of another gateway may be ahead
        days = [(today - timedelta(days=n)).isoformat() for n in range(_MOVED_DAYS)]
        keys = [f"{self._head}:tenants", *(f"{self._head}:spend:{who}" for who in (name, tenant))]
        for day in days:
            keys += [f"{self._head}:{part}:{who}:{day}" for who in (name, tenant) for part in ("entries", "sums")]
        with translate_redis_errors():
            moved: Any = await self._move(keys, [name, tenant, self._kept_s, *(day[:7] for day in days)])
            if moved:
                await self._redis.delete(*(f"{self._head}:order:{name}:{day}" for day in days))
                await self._redis.srem(f"{self._head}:open", *(f"{name} {day}" for day in days))
                await self._order.make(tenant, days)
        return int(moved)

    async def note_workers(self, workers: Sequence[WorkerRef]) -> None:
        """Let other gateways know of these workers."""
        if workers:
            values = [part for one in workers for part in (one.address, json.dumps(_worker_to_json(one)))]
            with translate_redis_errors():
                await self._note_workers([f"{self._head}:workers"], values)

    async def forget_worker(self, worker: WorkerRef) -> None:
        """It is gone; one that took its address stays."""
        name = f"{self._head}:workers"
        with translate_redis_errors():
            known = await self._redis.hget(name, worker.address)
            if known is not None and _worker_from_text(worker.address, str(known)) == worker:
                await self._redis.hdel(name, worker.address)

    async def workers(self) -> list[WorkerRef]:
        """Workers that some gateway has noted; a note that cannot be read, such as one of a newer version, is none."""
        with translate_redis_errors():
            found: Any = await self._redis.hgetall(f"{self._head}:workers")
        read = [_worker_from_text(address, text) for address, text in found.items()]
        return [worker for worker in read if worker is not None]

    def _keys(self, entry: LedgerEntry) -> list[str]:
        tenant, day = entry.tenant, entry.day
        parts = ("entries:{}:{}", "sums:{}:{}", "spend:{}", "tenants", "spans:{}:{}", "order:{}:{}", "corrects:{}:{}")
        own = [f"{self._head}:{part.format(tenant, day)}" for part in (*parts, "chain", "open")]
        return [*own, *window_keys(self._head, entry)]

    def _args(self, entry: LedgerEntry, look: _Look) -> list[str | int]:
        kept_s = self._kept_s if self._segments is None else 0
        return [
            entry.request_id, entry.rank, entry_to_text(entry), entry.tenant, entry.day[:7], kept_s, self._kept_s,
            entry.tag.arrived_unix_ms, entry.day, look.num_segments, look.number, look.text,
            window_of(entry).field, self._kept_s,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of a look into segments."""

    num_segments: int = -1
    """Segments that were looked into; -1 for no look."""
    number: int = -1
    text: str = ""
    """The entry that is there."""


def _worker_to_json(worker: WorkerRef) -> dict[str, Any]:
    return {"worker_id": worker.worker_id, "incarnation": worker.incarnation, "role": worker.role.value}


def _worker_from_text(address: str, text: str) -> WorkerRef | None:
    try:
        value = json.loads(text)
        worker_id, incarnation, role = value["worker_id"], value["incarnation"], WorkerRole(value["role"])
        return WorkerRef(worker_id=worker_id, incarnation=incarnation, address=address, role=role)
    except (ValueError, KeyError, TypeError):
        return None
