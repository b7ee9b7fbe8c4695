"""Notices a step loop that stands still while it has work."""

from __future__ import annotations

from stratos.common.clock import Clock
from stratos.engine.engine import EngineStatus


class StepWatch:
    """Fed with snapshots a few times per second; ``stalled_s`` may be read from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._step = -1
        self._moved_s = clock.now()

    def observe(self, status: EngineStatus) -> None:
        """Take note of a snapshot."""
        if status.step != self._step or not status.is_computing:
            self._step = status.step
            self._moved_s = self._clock.now()

    @property
    def stalled_s(self) -> float:
        """Seconds since the counter moved, or since there was no work, as of the snapshots so far."""
        return max(self._clock.now() - self._moved_s, 0.0)
