"""How long a step may take: what others need to know before they call a slow engine a stuck one."""

from __future__ import annotations

DECAY = 0.9995
"""Per step: a slow one counts half after 1,400 steps, so a stall is forgotten, the last big prompt is not."""
OUTLIER_RATIO = 4.0
"""One step this much slower than all others was a stall of the machine, not the engine's work."""


class SlowSteps:
    """The slowest recent step; a single outlier (a process that was stopped for a while) does not count in full."""

    __slots__ = ("_first_s", "_second_s")

    def __init__(self) -> None:
        self._first_s = self._second_s = 0.0

    def observe(self, took_s: float) -> None:
        first_s, second_s = self._first_s * DECAY, self._second_s * DECAY
        self._first_s = max(first_s, took_s)
        self._second_s = max(second_s, min(first_s, took_s))

    @property
    def slowest_s(self) -> float:
        """Seconds."""
        return min(self._first_s, OUTLIER_RATIO * self._second_s)
