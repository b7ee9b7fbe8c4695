"""A virtual clock and what is to happen when."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timeline:
    """Runs callbacks in the order of their times; equal times in the order of the calls of ``at``."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        """Call at that time, or now if it has passed."""
        heapq.heappush(self._events, (max(time_s, self._now), next(self._numbers), callback))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self._now, _, callback = heapq.heappop(self._events)
            callback()
