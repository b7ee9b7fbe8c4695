"""Moves entries from Redis into segments, once each, whatever dies in between.

    clear what the last segment has ──▶ choose a horizon ──▶ segment of all entries before it ──▶ object store
        ▲                                                                                              │
        └──── again, while something is due ◀── take its lines out of Redis ◀── append it to the chain ◀┘

Once an hour entries are sealed that arrived before the hour began; where Redis has too many, younger ones go, too.
Only the append counts, and Redis does it for one sealer alone: what was made before it and lost is an object that
nothing names, and what was not done after it the next sealer does first.  The lease spares work, no more.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stratos.core.ledger.entry import day_of
from stratos.core.ledger.segments import SegmentLine, SegmentRef, SegmentWriter
from stratos.store.ledger.chain import Chain, ChainState
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import TenantDay, UnsealedEntries

_log = logging.getLogger(__name__)
_LEASE_S = 120.0
_STEP_MS = 100
"""To which a horizon that leaves a number of entries is known."""
_RECENT_DAYS = 3
"""Tomorrow, by the clock of another gateway, today and yesterday."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealLimits:
    """When entries are sealed."""

    interval_s: float = 3600.0
    """Between two segments, and the age that entries reach in Redis."""
    max_unsealed: int = 100_000
    """Entries in Redis, beyond which younger ones are sealed."""
    max_lines: int = 20_000
    """Lines of one segment, about."""
    older_days: int = 92
    """Days back for which a version that ordered no entries may have left some."""


class Sealer:
    """One of them per gateway; the one with the lease works.

    Args:
        unsealed: what is in Redis.
        chain: of segments.
        segments: where entries go.
        limits: when.
        holder: name of this one.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        unsealed: UnsealedEntries,
        chain: Chain,
        segments: SegmentStore,
        limits: SealLimits,
        holder: str,
        wall_clock: Callable[[], float],
    ) -> None:
        self._unsealed = unsealed
        self._chain = chain
        self._segments = segments
        self._limits = limits
        self._holder = holder
        self._wall_clock = wall_clock

    async def lag_s(self) -> float:
        """Seconds since nothing was left that was due; 0 before the first look."""
        looked_ms = (await self._chain.state()).looked_ms
        return max(0.0, self._wall_clock() - looked_ms / 1000) if looked_ms else 0.0

    async def num_unsealed(self) -> int:
        """Entries in Redis."""
        return await self._unsealed.count(await self._unsealed.days())

    async def turn(self, *, moves_head: bool = True) -> int:
        """Seal what is due; returns how many lines were sealed.

        Args:
            moves_head: note the last segment in the object store.

        Raises:
            DependencyDown: Redis or the object store does not answer; what was begun is ended by the next turn.
        """
        if not await self._chain.take_lease(self._holder, _LEASE_S):
            return 0
        num_lines = 0
        try:
            state = await self._chain.state()
            if not state.looked_ms:  # from now on it is late
                await self._chain.note("looked", self._now_ms())
            await self._clear_last(state, moves_head)
            await self._order_older(state)
            due_ms = await self._due(state)
            while horizon_ms := await self._next(due_ms):
                num_lines += await self.seal(horizon_ms, moves_head=moves_head)
                if not await self._chain.take_lease(self._holder, _LEASE_S):
                    return num_lines
            await self._chain.note("looked", self._now_ms())
        finally:
            await self._chain.take_lease(self._holder, 0)
        return num_lines

    async def seal_before(self, due_ms: int, *, moves_head: bool = True) -> None:
        """Seal all entries that arrived before a time, in as many segments as that takes."""
        while horizon_ms := await self._next(due_ms):
            await self.seal(horizon_ms, moves_head=moves_head)

    async def seal(self, horizon_ms: int, *, moves_head: bool = True) -> int:
        """Make one segment of the entries that arrived before a time; returns how many lines it has."""
        state = await self._chain.state()
        await self._clear_last(state, moves_head)
        with tempfile.TemporaryDirectory(prefix="stratos-segment-") as folder:
            path = Path(folder) / "segment"
            ref, days, num_lines = await self._write(path, state.last, horizon_ms)
            if not num_lines:
                return 0
            await self._segments.put(ref, path)
        if not await self._chain.append(state, ref, horizon_ms, days, self._now_ms()):
            _log.info("segment %d of the ledger was made by another gateway", ref.number)
            return 0
        await self._clear_last(await self._chain.state(), moves_head)
        _log.info("segment %d of the ledger has %d lines, %d bytes", ref.number, num_lines, ref.num_bytes)
        return num_lines

    async def _clear_last(self, state: ChainState, moves_head: bool) -> None:
        """Take what the last segment has out of Redis; a sealer that died may have left it there."""
        if state.last is None or state.num_cleared == state.num_segments:
            return
        if moves_head:
            await self._put_head(state.last)
        async for lines in self._segments.all_lines(state.last):
            by_day: dict[TenantDay, list[SegmentLine]] = {}
            for line in lines:
                by_day.setdefault((line.tenant, day_of(line.arrived_ms)), []).append(line)
            await self._chain.clear(state.last.number, by_day, state.last)
        await self._chain.note("cleared", state.num_segments)

    async def _put_head(self, ref: SegmentRef) -> None:
        """Note the last segment, and one that another sealer appended before that was done: its note may be gone."""
        noted: SegmentRef | None = None
        while noted != ref:
            await self._segments.put_head(ref)
            noted, state = ref, await self._chain.state()
            ref = state.last or ref

    async def _order_older(self, state: ChainState) -> None:
        """Find entries of gateways of an older version: all of them once, recent ones before each hour's segment."""
        if state.is_ordered and not self._is_hour(state):
            return
        today = datetime.fromtimestamp(self._wall_clock(), UTC).date()
        num_days = _RECENT_DAYS if state.is_ordered else self._limits.older_days + _RECENT_DAYS
        await self._unsealed.order_older(today, num_days)
        await self._chain.note("ordered", 1)

    async def _due(self, state: ChainState) -> int:
        """Time before which entries are due; 0 for none."""
        days, now_ms = await self._unsealed.days(), self._now_ms()
        interval_ms = int(self._limits.interval_s * 1000)
        due_ms = now_ms - interval_ms if self._is_hour(state) else 0
        total = await self._unsealed.count(days)
        if total - await self._unsealed.count(days, due_ms) <= self._limits.max_unsealed:
            return due_ms
        # half of what may stay, so that the next segment is not due at once
        return await self._horizon_of(days, total - self._limits.max_unsealed // 2, now_ms + interval_ms)

    def _is_hour(self, state: ChainState) -> bool:
        return self._now_ms() - state.appended_ms >= self._limits.interval_s * 1000

    async def _next(self, due_ms: int) -> int:
        """Time before which one segment takes what is due; 0 where nothing is."""
        days = await self._unsealed.days()
        num_due = await self._unsealed.count(days, due_ms)
        if num_due > self._limits.max_lines:
            return await self._horizon_of(days, self._limits.max_lines, due_ms)
        return due_ms if num_due else 0

    async def _horizon_of(self, days: Sequence[TenantDay], num_lines: int, latest_ms: int) -> int:
        """About the first time before which so many entries arrived; never a time before which none did."""
        low, high = await self._unsealed.oldest_ms(days), latest_ms
        while high - low > _STEP_MS:
            middle = (low + high) // 2
            if await self._unsealed.count(days, middle) >= num_lines:
                high = middle
            else:
                low = middle
        return high

    async def _write(
        self, path: Path, previous: SegmentRef | None, horizon_ms: int
    ) -> tuple[SegmentRef, list[str], int]:
        """A segment of the entries before a time, as a file; returns its name, days and number of lines."""
        number = 0 if previous is None else previous.number + 1
        with path.open("wb") as file:
            writer = SegmentWriter(file, previous)
            for tenant, day in await self._unsealed.days():
                async for lines in self._unsealed.lines(tenant, day, horizon_ms):
                    await asyncio.to_thread(writer.add, [line for line in lines if line.text])
                    await self._chain.clear(number, {(tenant, day): [line for line in lines if not line.text]})
            ref = await asyncio.to_thread(writer.end)
        return ref, writer.days, writer.num_lines

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)
