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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.segments import Place
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.ledger.entry_order import EntryOrder
from stratos.store.ledger.entry_reader import EntryReader
from stratos.store.ledger.memory_share import MemoryShare
from stratos.store.ledger.scripts import MOVE, NOTE_WORKERS
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.writing.entry_writer import WAITS, EntryWriter
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_DAY_S = 24 * 3600
_MOVED_DAYS = 400
"""Days up to today that may have entries or sums under the name of a tenant."""


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
        self._order = EntryOrder(redis, config)
        self._reader = EntryReader(redis, config, segments, store_id)
        self._redis = redis
        self._head = f"{config.prefix}:ledger"
        self._kept_s = entries_kept_days * _DAY_S
        self._writer = EntryWriter(redis, config, self._kept_s, segments, store_id)
        self._note_workers = GuardedScript(redis, config, NOTE_WORKERS, store_id)
        self._move = GuardedScript(redis, config, MOVE, store_id)
        self._reads = GuardedReads(redis, config, store_id)

    @property
    def server(self) -> str:
        """Name of the Redis that answered last, where its share is looked at; another one after a failover."""
        return "" if self._share is None else self._share.server

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
            answers = await self._writer.write(entries, looks)
        return [
            Written(False, entry.tenant, 0, due)
            if outcome == WAITS
            else Written(outcome != "kept", entry.tenant, int(due))
            for (outcome, due), entry in zip(answers, entries, strict=True)
        ]

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


def _worker_to_json(worker: WorkerRef) -> dict[str, Any]:
    return {"worker_id": worker.worker_id, "incarnation": worker.incarnation, "role": worker.role.value}


def _worker_from_text(address: str, text: str) -> WorkerRef | None:
    try:
        value = json.loads(text)
        worker_id, incarnation, role = value["worker_id"], value["incarnation"], WorkerRole(value["role"])
        return WorkerRef(worker_id=worker_id, incarnation=incarnation, address=address, role=role)
    except (ValueError, KeyError, TypeError):
        return None
