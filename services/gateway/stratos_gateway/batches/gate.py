"""How many lines run at a time: one more for each round that went well, half as many where the platform is full.

Which one is next: lines of all slices wait together, and places go through them by their keys, in sweeps.  Keys of
lines that begin alike are neighbours, so workers find in their caches what such lines share.  A line whose key the
sweep has passed waits for the next one, and so does one that comes after ``_MOST_JOINING`` others have joined the sweep
under way.  So a sweep has an end, whatever keys a tenant's lines have, and no line waits for ever.

When: lines that begin together take the event loop together, at each of their turns, from requests that clients wait
for.  So one begins ``pace_s`` after another, later where the loop is behind, yet within ``_MOST_HELD_S``.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos.common.clock import Clock
from stratos_gateway.batches.courtesy import Courtesy
from stratos_gateway.metrics import GatewayMetrics

_FIRST = 4.0
_PAUSE_S = 1.0
"""After one halving, before the next: refusals of one moment count once."""
_LATE_S = 0.004
"""A timer of the event loop that comes later than this tells of work that waits."""
_MOST_HELD_S = 0.25
"""A busy loop holds a line up for so long at most."""
_MOST_JOINING = 512
"""More than join a sweep where a gateway has lines of all kinds; 256 loses a tenth of the gain."""
_Waiting = tuple[int, bytes, int, asyncio.Future[None]]
"""Sweep and key of a line, a number that no other has, and the end of its wait."""


class LineGate:
    """Belongs to the event loop.

    Args:
        most: lines at a time.
        clock: monotonic.
        metrics: count lines.
        pace_s: between beginnings of two lines; 0 lets them begin together.
        courtesy: bounds them for the sake of clients.
    """

    def __init__(
        self, most: int, clock: Clock, metrics: GatewayMetrics, pace_s: float = 0.0, courtesy: Courtesy | None = None
    ) -> None:
        self._lines = metrics.batch_lines
        self._most = float(most)
        self._clock = clock
        self._limit = min(_FIRST, self._most)
        self._num_running = 0
        self._num_asked = 0
        self._waiting: list[_Waiting] = []
        self._sweep, self._last_key = 0, b""
        """Of the line that got the last place."""
        self._num_joined = 0
        """Lines that came while this sweep was under way and wait in it."""
        self._halved_s = float("-inf")
        self._pace_s = pace_s
        self._courtesy = courtesy or Courtesy()
        self._courtesy.serve(lambda: self._num_running, self._admit)
        metrics.batch_lines_limit.set_function(lambda: self.limit)
        self._next: asyncio.TimerHandle | None = None
        """When lines may begin again, where the last one has just begun."""

    @property
    def limit(self) -> int:
        """Lines that may run now."""
        return int(min(self._limit, self._courtesy.limit))

    @asynccontextmanager
    async def place(self, key: bytes = b"") -> AsyncIterator[None]:
        """Hold a place for one line; those of equal keys come in turn."""
        await self._take(key)
        try:
            yield
        finally:
            self._leave()

    async def _take(self, key: bytes) -> None:
        self._num_asked += 1
        joins = key > self._last_key and self._num_joined < _MOST_JOINING
        self._num_joined += joins
        sweep = self._sweep + (not joins)
        begins = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (sweep, key, self._num_asked, begins))
        self._admit()
        try:
            await begins
        except asyncio.CancelledError:
            if not begins.cancelled():  # it had its place already
                self._leave()
            raise

    def _leave(self) -> None:
        self._num_running -= 1
        self._admit()

    def _admit(self) -> None:
        while self._next is None and self._waiting and self._num_running < self.limit:
            sweep, key, _, begins = heapq.heappop(self._waiting)
            if not begins.done():
                self._num_joined = self._num_joined if sweep == self._sweep else 0
                self._sweep, self._last_key = sweep, key
                self._num_running += 1
                begins.set_result(None)
                self._courtesy.watch()
                if self._pace_s:
                    now = asyncio.get_running_loop().time()
                    self._pause(now, now + _MOST_HELD_S)

    def _pause(self, now: float, ends_s: float) -> None:
        due_s = now + self._pace_s
        self._next = asyncio.get_running_loop().call_at(due_s, self._look, due_s, ends_s)

    def _look(self, due_s: float, ends_s: float) -> None:
        """Go on where the loop is not behind, or was for long enough."""
        now, self._next = asyncio.get_running_loop().time(), None
        if now - due_s > _LATE_S and now < ends_s:
            self._pause(now, ends_s)
        else:
            self._admit()

    def note_answer(self, *, is_ok: bool = True) -> None:
        """A line was answered."""
        self._lines.labels("completed" if is_ok else "failed").inc()
        self._limit = min(self._most, self._limit + 1 / self._limit)
        self._admit()

    def note_refusal(self, *, is_full: bool = True) -> None:
        """A line was refused for now.

        Args:
            is_full: others would be, too; a reason that the line or its tenant has for itself bounds no others.
        """
        self._lines.labels("deferred").inc()
        if is_full and self._clock.now() >= self._halved_s + _PAUSE_S:
            self._halved_s, self._limit = self._clock.now(), max(1.0, self._limit / 2)
