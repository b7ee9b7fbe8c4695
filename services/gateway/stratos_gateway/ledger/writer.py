"""Writes entries into the ledger in the background: in batches, into the spool while Redis is away, each once.

Workers are told only of what Redis has.  So while it is away an entry is kept twice: in this gateway's spool, and as a
count at the worker.  What is new goes first; the spool follows in slices, and while Redis is away one entry of the
slice at hand is tried, so that an outage costs the same however long it lasts.

An entry that may be in a segment which cannot be read waits by itself: it holds up no other one.

A Redis that takes the place of another one may lack what that took last, of which workers were told that it is there.
So the last entries are written to it once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.usage import UsageCount
from stratos.core.tenancy.plan import Plan
from stratos.store.ledger.ledger_store import Written
from stratos.store.ledger.spool import Spool, SpoolSlice
from stratos_gateway.answering.draft import Draft
from stratos_gateway.ledger.entries import claimed_entry, own_entry
from stratos_gateway.ledger.grouped_spool import GroupedSpool
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
_BATCH = 256
_SLICES_PER_TURN = 16
"""Batches of the spool that go between two looks at what is new."""
_TURNS_TO_NEXT_LOOK = 20
"""Turns without a look into segments after one of which a look failed: it may have taken seconds."""
_CATCH_UP_S = 5.0
"""Longest that results wait for their entries, beyond what these wait for counts of workers."""
_MAX_RECENT = 2048
"""Written entries that are kept for a Redis that takes the place of another one: more than its last moments."""


class EntryStore(Protocol):
    """Where the ledger is; ``store.ledger.LedgerStore`` is the one of a gateway."""

    @property
    def server(self) -> str:
        """Name of the Redis that answered last; "" where that is not known."""
        ...

    async def write(self, entries: Sequence[LedgerEntry], *, looks: bool = True) -> list[Written]:
        """Write entries, each once however often it is written; raises ``DependencyDown``.

        Args:
            entries: any number.
            looks: into segments for those that may be in one; else they wait.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who hears of what was written."""

    due: Callable[[str, str, int], None]
    """Amount that a tenant owes for a month, after each write."""
    written: Callable[[LedgerEntry], None] | None = None
    """Each entry."""
    before: Callable[[bool, Sequence[LedgerEntry]], Awaitable[None]] | None = None
    """Entries that are about to be written, and whether these requests have ended here; it fails for nothing."""


class LedgerWriter:
    """Belongs to the event loop.

    Args:
        store: the ledger.
        meter: what has ended.
        spool: keeps entries while the ledger is away; ``None`` keeps them in memory.
        config: how often, how many.
        plan_of: the plan of a tenant by its id; ``None`` where there is no such tenant any more. Raises
            ``DependencyDown`` before tenants are known.
        metrics: of the process.
        told: of what was written.
    """

    def __init__(
        self,
        store: EntryStore,
        meter: Meter,
        spool: Spool | None,
        config: LedgerConfig,
        plan_of: Callable[[str], Plan | None],
        metrics: GatewayMetrics,
        told: Told,
    ) -> None:
        self._store, self._meter, self._spool, self._config = store, meter, spool, config
        self._group = None if spool is None else GroupedSpool(spool)
        self._plan_of = plan_of
        self._metrics = metrics
        self._told = told
        self._pending: list[LedgerEntry] = []
        self._replayed = 0
        """Offset in the spool up to which the ledger has everything."""
        self._slice: SpoolSlice | None = None
        """What follows there."""
        self._waiting: list[LedgerEntry] = []
        """Segments that may have them could not be read; in the spool they are before that offset."""
        self._recent: deque[LedgerEntry] = deque(maxlen=_MAX_RECENT)
        self._server = ""
        self._num_turns_to_look = 0
        self._is_away = False
        self._turned = asyncio.Event()
        """Set at the end of a turn, and another one after that."""
        if spool is not None:
            metrics.ledger_dropped.inc(spool.num_torn)

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
        self._num_turns_to_look = max(0, self._num_turns_to_look - 1)
        counts = [] if self._num_turns_to_look else self._meter.take_claims()
        try:
            self._pending = await self._write(self._pending, has_ended=True)
            if self._spool is None:
                self._waiting, self._pending = self._waiting + self._pending, []
            counts = await self._write_claims(counts)
            await self._keep()
            await self._replay()
            await self._write_again()
            self._say("")
        except (DependencyDown, RedisError) as error:
            self._say(str(error))
            await self._keep()
        finally:
            self._meter.give_back_claims(counts)
        self._metrics.ledger_pending.set(len(self._pending) + len(self._waiting))
        self._turned.set()
        self._turned = asyncio.Event()

    async def caught_up(self) -> None:
        """Wait until the ledger or its spool has what has ended here by now, or that takes too long."""
        left = self._unwritten()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.count_wait_s + _CATCH_UP_S):
                while left:
                    await self._turned.wait()
                    left &= self._unwritten()

    def _unwritten(self) -> set[str]:
        return self._meter.ended() | {entry.request_id for entry in self._pending}

    async def _write_claims(self, counts: Sequence[UsageCount]) -> list[UsageCount]:
        """Write what gateways that died have left; returns what waits."""
        priced = [(count, self._plan_of(count.tenant)) for count in counts]
        left = await self._write([claimed_entry(count, plan) for count, plan in priced if plan is not None])
        waiting = {(entry.request_id, entry.rank) for entry in left}
        return [count for count in counts if count.key in waiting]

    async def settle(self, drafts: Sequence[Draft]) -> None:
        """Write entries of requests that no worker counts, before their clients are answered.

        Where the ledger does not take them at once, they go to the spool; where the disk does not either, the turns get
        them as they get all others.
        """
        if not self._config.settle_s:
            return
        entries = [own_entry(draft, {}) for draft in drafts]
        if await self._is_in_time(self._enter(entries)) or await self._is_in_time(self._spooled(entries)):
            self._meter.note_settled(draft.request_id for draft in drafts)

    async def _is_in_time(self, work: Awaitable[bool]) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.settle_s):
                return await work
        return False

    async def _enter(self, entries: Sequence[LedgerEntry]) -> bool:
        """Write entries into the ledger, unless it is known to be away; returns whether it has all of them."""
        if self._is_away:
            return False
        try:
            return not await self._write(entries, looks=False)
        except (DependencyDown, RedisError):
            return False

    async def _spooled(self, entries: Sequence[LedgerEntry]) -> bool:
        return self._group is not None and await self._group.keep(entries)

    async def close(self) -> None:
        """Write what is left, or keep it."""
        await self.turn(waits=False)
        if self._spool is not None:
            self._spool.close()

    async def _write(
        self, entries: Sequence[LedgerEntry], *, looks: bool = True, has_ended: bool = False
    ) -> list[LedgerEntry]:
        """Write entries, of requests that have ended here or of others; returns those that wait for segments."""
        left: list[LedgerEntry] = []
        for begin in range(0, len(entries), _BATCH):
            batch = entries[begin : begin + _BATCH]
            if self._told.before is not None:
                await self._told.before(has_ended, batch)
            written = await self._store.write(batch, looks=looks and not self._num_turns_to_look)
            for entry, one in zip(batch, written, strict=True):
                if one.waits_for:
                    self._put_looks_off(one.waits_for, looks)
                    left.append(entry)
                    continue
                self._metrics.written(entry.outcome if one.is_new else "known").inc()
                self._recent.append(entry)
                self._told.due(one.tenant, entry.day[:7], one.month_due)
                if self._told.written is not None:
                    self._told.written(entry)
            self._meter.acknowledge([e.request_id for e, one in zip(batch, written, strict=True) if not one.waits_for])
        return left

    async def _write_again(self) -> None:
        """Write the last entries once more where another Redis answers now, which may lack them."""
        if (server := self._store.server) == self._server:
            return
        recent, num_lost = list(self._recent) if self._server else [], 0
        for begin in range(0, len(recent), _BATCH):
            written = await self._store.write(recent[begin : begin + _BATCH], looks=False)
            num_lost += sum(one.is_new for one in written)
        self._server = server
        if num_lost:
            _log.warning("%d entries of the ledger were written again: Redis had lost them", num_lost)

    def _put_looks_off(self, problem: str, looks: bool) -> None:
        if looks and not self._num_turns_to_look:
            self._num_turns_to_look = _TURNS_TO_NEXT_LOOK
            _log.warning("entries of the ledger wait for a segment: %s", problem)

    async def _replay(self) -> None:
        """Write some slices of the spool; what was written already is not read again, unless the process dies."""
        if not self._num_turns_to_look:
            some, rest = self._waiting[:_BATCH], self._waiting[_BATCH:]
            self._waiting = [*rest, *await self._write(some)]
        spool = self._spool
        if spool is None or not spool.num_bytes:
            return
        for _ in range(_SLICES_PER_TURN):
            if self._replayed == spool.num_bytes or len(self._waiting) >= self._config.max_pending:
                break
            await self._replay_slice(spool)
        is_over = self._replayed == spool.num_bytes and not self._waiting
        if is_over and await asyncio.to_thread(spool.clear, self._replayed):
            self._replayed = 0
            _log.info("the entries of the spool are in the ledger")
        self._metrics.ledger_spool_bytes.set(spool.num_bytes - self._replayed)

    async def _replay_slice(self, spool: Spool) -> None:
        if self._slice is None:
            self._slice = await asyncio.to_thread(spool.read, self._replayed, _BATCH)
            self._metrics.ledger_dropped.inc(self._slice.num_unreadable)
        if self._is_away:
            await self._write(self._slice.entries[:1])
        self._waiting += await self._write(self._slice.entries)
        self._replayed, self._slice = self._slice.end, None

    async def _keep(self) -> None:
        """Into the spool, or in memory up to a bound."""
        if self._spool is not None and self._pending:
            if await self._spooled(self._pending):
                self._pending = []
            self._metrics.ledger_spool_bytes.set(self._spool.num_bytes - self._replayed)
        for kept in (self._pending, self._waiting):
            num_over = len(kept) - self._config.max_pending
            if num_over > 0 and (kept is self._pending or self._spool is None):
                self._metrics.ledger_dropped.inc(num_over)
                del kept[:num_over]

    def _say(self, problem: str) -> None:
        if problem and not self._is_away:
            _log.warning("the ledger cannot be written: %s; entries are kept", problem)
        elif self._is_away and not problem:
            _log.info("the ledger is written again")
        self._is_away = bool(problem)
