"""How many lines run at a time: one more for each round that went well, half as many where the platform is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stratos.common.clock import Clock
from stratos_gateway.metrics import GatewayMetrics

_FIRST = 4.0
_PAUSE_S = 1.0
"""After one halving, before the next: refusals of one moment count once."""


class LineGate:
    """Belongs to the event loop.

    Args:
        most: lines at a time.
        clock: monotonic.
        metrics: count lines.
    """

    def __init__(self, most: int, clock: Clock, metrics: GatewayMetrics) -> None:
        self._lines = metrics.batch_lines
        self._most = float(most)
        self._clock = clock
        self._limit = min(_FIRST, self._most)
        self._num_running = 0
        self._changed = asyncio.Condition()
        self._halved_s = float("-inf")

    @property
    def limit(self) -> int:
        """Lines that may run now."""
        return int(self._limit)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for one line."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_running < self.limit)
            self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            async with self._changed:
                self._changed.notify_all()

    def note_answer(self, *, is_ok: bool = True) -> None:
        """A line was answered."""
        self._lines.labels("completed" if is_ok else "failed").inc()
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def note_refusal(self) -> None:
        """A line was refused for now."""
        self._lines.labels("deferred").inc()
        if self._clock.now() >= self._halved_s + _PAUSE_S:
            self._halved_s, self._limit = self._clock.now(), max(1.0, self._limit / 2)
