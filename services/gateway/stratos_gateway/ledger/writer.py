"""Writes entries into the ledger in the background: in batches, into the spool while Redis is away, each once.

Workers are told only of what Redis has.  So while it is away an entry is kept twice: in this gateway's spool, and as a
count at the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.usage import UsageCount
from stratos.core.tenancy.plan import Plan
from stratos.store.ledger.ledger_store import Written
from stratos.store.ledger.spool import Spool
from stratos_gateway.ledger.entries import claimed_entry
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
_BATCH = 256


class EntryStore(Protocol):
    """Where the ledger is; ``store.ledger.LedgerStore`` is the one of a gateway."""

    async def write(self, entries: Sequence[LedgerEntry]) -> list[Written]:
        """Write entries, each once however often it is written; raises ``DependencyDown``."""
        ...


class LedgerWriter:
    """Belongs to the event loop.

    Args:
        store: the ledger.
        meter: what has ended.
        spool: keeps entries while the ledger is away; ``None`` keeps them in memory.
        config: how often, how many.
        plan_of: the plan of a tenant by its id; ``None`` where there is no such tenant any more.
        metrics: of the process.
        note_due: told what a tenant owes for a month, after each write.
        note_claim: told of each count that was written for a gateway that died.
    """

    def __init__(
        self,
        store: EntryStore,
        meter: Meter,
        spool: Spool | None,
        config: LedgerConfig,
        plan_of: Callable[[str], Plan | None],
        metrics: GatewayMetrics,
        note_due: Callable[[str, str, int], None],
        note_claim: Callable[[UsageCount], None] | None = None,
    ) -> None:
        self._store, self._meter, self._spool, self._config = store, meter, spool, config
        self._plan_of = plan_of
        self._metrics = metrics
        self._note_due = note_due
        self._note_claim = note_claim
        self._pending: list[LedgerEntry] = []
        self._is_away = False

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._config.interval_s)
            await self.turn()

    async def turn(self, *, waits: bool = True) -> None:
        """Write what is ready.

        Args:
            waits: for counts of workers; not at the end of the process.
        """
        self._pending += self._meter.take_ready(waits=waits)
        counts = self._meter.take_claims()
        claims = [claimed_entry(count, plan) for count in counts if (plan := self._plan_of(count.tenant)) is not None]
        try:
            await self._replay()
            await self._write(self._pending)
            self._pending = []
            await self._write(claims)
            if self._note_claim is not None:
                for count in counts:
                    self._note_claim(count)
            self._say("")
        except (DependencyDown, RedisError) as error:
            self._say(str(error))
            await self._keep()
        self._metrics.ledger_pending.set(len(self._pending))

    async def close(self) -> None:
        """Write what is left, or keep it."""
        await self.turn(waits=False)
        if self._spool is not None:
            self._spool.close()

    async def _write(self, entries: Sequence[LedgerEntry]) -> None:
        for begin in range(0, len(entries), _BATCH):
            batch = entries[begin : begin + _BATCH]
            written = await self._store.write(batch)
            for entry, one in zip(batch, written, strict=True):
                self._metrics.ledger_entries.labels(entry.outcome if one.is_new else "known").inc()
                self._note_due(one.tenant, entry.day[:7], one.month_due)
            self._meter.acknowledge([entry.request_id for entry in batch])

    async def _replay(self) -> None:
        if self._spool is None or not self._spool.num_bytes:
            return
        entries = await asyncio.to_thread(self._spool.read)
        await self._write(entries)
        await asyncio.to_thread(self._spool.clear)
        self._metrics.ledger_spool_bytes.set(0)
        _log.info("%d entries of the spool are in the ledger", len(entries))

    async def _keep(self) -> None:
        """Into the spool, or in memory up to a bound."""
        if self._spool is not None and self._pending:
            try:
                is_kept = await asyncio.to_thread(self._spool.append, self._pending)
            except OSError as error:
                _log.error("the spool of the ledger cannot be written: %s", error)
                is_kept = False
            if is_kept:
                self._pending = []
            self._metrics.ledger_spool_bytes.set(self._spool.num_bytes)
        num_over = len(self._pending) - self._config.max_pending
        if num_over > 0:
            self._metrics.ledger_dropped.inc(num_over)
            del self._pending[:num_over]

    def _say(self, problem: str) -> None:
        if problem and not self._is_away:
            _log.warning("the ledger cannot be written: %s; entries are kept", problem)
        elif self._is_away and not problem:
            _log.info("the ledger is written again")
        self._is_away = bool(problem)
