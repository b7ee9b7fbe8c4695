"""Demand of one bucket: requests that wait at this moment, and those of the last second."""

from __future__ import annotations

from typing import Protocol

_DEMAND_S = 0.5
"""A slice holds what was wanted in so many seconds, refused requests included."""
_MEMORY_S = 1.0
"""A refused cost counts for so long."""


class PlaceInLine(Protocol):
    """A request that waits for a part of one limit."""

    cost: float

    def is_held_up(self) -> bool:
        """Whether it lacks that of an earlier limit."""
        ...

    def serve(self, now: float) -> None:
        """Take all it waits for, if that is there."""
        ...


class Demand:
    """Belongs to one bucket; times are seconds of the caller's monotonic clock.

    Args:
        now: seconds.
    """

    def __init__(self, now: float) -> None:
        self.wanted_at = now
        self._smoothed = 0.0
        self._largest = 0.0
        self._refused: tuple[float, float] | None = None
        self._line: dict[PlaceInLine, None] = {}

    def note(self, cost: float, now: float) -> None:
        """A request came; its cost fades over ``_DEMAND_S``."""
        faded = max(0.0, 1.0 - (now - self.wanted_at) / _DEMAND_S)
        self._smoothed = self._smoothed * faded + cost
        self._largest = max(self._largest * (0.5 + faded / 2), cost)
        self.wanted_at = now

    def refuse(self, cost: float, now: float) -> None:
        """A request found too little."""
        if self._refused is None or now - self._refused[1] > _MEMORY_S or cost <= self._refused[0]:
            self._refused = (cost, now)

    def join(self, request: PlaceInLine) -> None:
        """A request waits."""
        self._line[request] = None

    def leave(self, request: PlaceInLine) -> None:
        """It waits no longer."""
        self._line.pop(request, None)

    @property
    def line(self) -> tuple[PlaceInLine, ...]:
        """Requests that wait, in the order in which they came."""
        return tuple(self._line)

    @property
    def is_held_up(self) -> bool:
        """All that wait lack something of an earlier limit: what is here serves none of them."""
        return bool(self._line) and all(request.is_held_up() for request in self._line)

    @property
    def waiting(self) -> float:
        """All that is waited for."""
        return sum(request.cost for request in self._line)

    @property
    def largest(self) -> float:
        """Cost of the largest request lately."""
        return self._largest

    def is_recent(self, now: float) -> bool:
        """Something was wanted in the last second."""
        return bool(self._line) or now - self.wanted_at <= _MEMORY_S

    def expected(self) -> float:
        """Enough for half a second, for two of the largest requests, and for all that wait."""
        return max(self._smoothed, 2 * self._largest, self.waiting)

    def least(self, now: float) -> float:
        """The smallest amount that is waited for, or was refused a moment ago; 0 where there is none."""
        if self._line:
            return min(request.cost for request in self._line)
        return 0.0 if self._refused is None or now - self._refused[1] > _MEMORY_S else self._refused[0]
