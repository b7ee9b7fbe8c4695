"""Liveness of a worker: judged by its statuses and by its step counter, never by an open port.

A worker that sleeps is out, and says so itself.
A killed worker breaks its status stream: out at once.  A stopped one falls silent: out after ``silent_after_s``.
One whose process lives but whose step loop stands still while it has work: out after ``hung_after_s``, or later
where its own steps take long.
Time in which the router itself was held up does not count.
Any of them is in again as soon as its statuses flow and its steps move.
"""

from __future__ import annotations

import enum

from stratos.core.fleet import HELD, RESTING, SleepState, WorkerStatus
from stratos.core.step_watch import StepWatch
from stratos.routing.settings import LivenessConfig


class OutReason(enum.StrEnum):
    """Why a worker may not be chosen; the values are metric labels."""

    UNKNOWN = "unknown"
    """No status yet."""
    LOST = "lost"
    """Its status stream broke."""
    SILENT = "silent"
    HUNG = "hung"
    DRAINING = "draining"
    ASLEEP = RESTING
    """Nothing is wrong with it: it sleeps, falls asleep or wakes."""
    STANDBY = HELD
    """Nothing is wrong with it: it is a spare."""
    NOT_READY = "not_ready"


class WorkerLiveness:
    """Verdict on one worker address; a new incarnation starts without a history."""

    def __init__(self, settings: LivenessConfig) -> None:
        self._settings = settings
        self._status: WorkerStatus | None = None
        self._status_at = self._moved_at = 0.0
        self._forgiven_at = float("-inf")
        self._steps = StepWatch(0.0)
        self._is_lost = False

    @property
    def status(self) -> WorkerStatus | None:
        return self._status

    @property
    def status_at(self) -> float:
        """When the last status arrived."""
        return self._status_at

    @property
    def moved_at(self) -> float:
        """When a status last showed that the worker moves, or has nothing to do."""
        return self._moved_at

    def on_status(self, status: WorkerStatus, now: float) -> None:
        last = self._status
        if last is None or last.ref.incarnation != status.ref.incarnation:
            self._steps = StepWatch(now)
        engine = status.engine
        self._steps.observe(engine.step, now, is_computing=engine.is_computing, slow_step_s=engine.slow_step_s)
        self._status, self._status_at, self._is_lost = status, now, False
        if not self._steps.stalled_s(now):
            self._moved_at = now

    def forgive(self, now: float) -> None:
        """The observer itself was held up: silence until now means nothing."""
        self._forgiven_at = now
        self._steps.restart(now)

    def on_lost(self) -> None:
        """The status stream broke."""
        self._is_lost = True

    def out_reason(self, now: float) -> OutReason | None:
        """Why the worker may not be chosen now; ``None`` when it may."""
        status = self._status
        if self._is_lost:
            return OutReason.LOST
        if status is None:
            return OutReason.UNKNOWN
        if now - max(self._status_at, self._forgiven_at) > self._settings.silent_after_s:
            return OutReason.SILENT
        if self._steps.is_stalled(now, self._settings.hung_after_s):
            return OutReason.HUNG
        if status.is_draining:
            return OutReason.DRAINING
        if status.sleep_state is SleepState.STANDBY:
            return OutReason.STANDBY
        if status.sleep_state not in (SleepState.AWAKE, SleepState.FAILED):
            return OutReason.ASLEEP
        return OutReason.NOT_READY if status.not_ready_reason else None
