"""Notices a step loop that stands still while it has work."""

from __future__ import annotations

from stratos.common.clock import Clock
from stratos.core.fleet import STEPS_OF_GRACE
from stratos.engine.contract.results import EngineStatus


class StepWatch:
    """Fed with snapshots a few times per second; ``stalled_s`` may be read from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._step = -1
        self._slow_step_s = 0.0
        self._moved_s = clock.now()

    def observe(self, status: EngineStatus) -> None:
        """Take note of a snapshot."""
        self._slow_step_s = status.slow_step_s
        if status.step != self._step or not status.is_computing:
            self._step = status.step
            self._moved_s = self._clock.now()

    @property
    def stalled_s(self) -> float:
        """Seconds since the counter moved, or since there was no work, as of the snapshots so far."""
        return max(self._clock.now() - self._moved_s, 0.0)

    def stands_still(self, timeout_s: float) -> bool:
        """It has for longer than ``timeout_s``, and for longer than a slow step explains."""
        return self.stalled_s > max(timeout_s, STEPS_OF_GRACE * self._slow_step_s)
