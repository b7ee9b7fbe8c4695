"""Decides the size of one pool.

Up at once, down one worker at a time after a quiet window without gaps.  The steps of a decision:
    no data, or another autoscaler acts -> hold
    fewer than the minimum, confirmed -> start;  more than the maximum -> drain
    above an upper mark (queue, TTFT, utilisation) -> start (not while one starts, not in a cooldown)
    a router did not answer -> start where that is wanted, but drain none
    below every lower mark for the whole quiet window -> drain the least loaded, newest

Holding is a decision with a reason.  Missing data never changes a pool.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from stratos.core.gateway_load import WINDOW_S
from stratos.planning.demand import Load, Reason, is_quiet, measure, num_wanted, pressure
from stratos.planning.observation import PoolObservation, WorkerLoad
from stratos.planning.settings import PoolConfig

NEVER = float("-inf")


class Direction(enum.StrEnum):
    """Change of the pool's size."""

    UP = "up"
    DOWN = "down"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningDecision:
    """A decision about a pool, and its reason."""

    direction: Direction
    reason: Reason
    desired: int
    """Workers the pool should have."""
    num_start: int = 0
    victim: str = ""
    """Worker to drain; empty unless ``direction`` is DOWN."""
    load: Load | None = None
    """Load that it was taken on; ``None`` without data."""
    blocked: Reason | None = None
    """Change that the load required, where ``reason`` stood in its way."""


class PoolPlanner:
    """Planner of one pool; remembers what stabilisation needs."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._quiet_since: float | None = None
        """Below every lower mark since then, without gaps."""
        self._seen_at = NEVER
        self._last_up = self._last_down = NEVER
        self._missing_since: float | None = None
        self._out_since: dict[str, float] = {}
        self._first_seen: dict[str, int] = {}
        self._num_seen = 0
        self._num_failures = 0
        self._no_start_before = NEVER
        self._desired = config.min_workers

    def decide(
        self, pool: PoolObservation | None, now: float, *, why_none: Reason = Reason.NO_DATA
    ) -> PlanningDecision:
        """One decision; it is taken as carried out.

        Args:
            pool: what is known of the pool; ``None`` when nothing is.
            now: monotonic seconds.
            why_none: reason to hold without an observation.
        """
        if pool is None:
            self._forget_window()
            return self._hold(why_none)
        load = measure(pool, self._config)
        self._track(pool, load, now)
        decision = self._repair(pool, now) or self._grow(pool, load, now) or self._shrink(pool, now)
        self._desired = decision.desired
        return replace(decision, load=load)

    def start_failed(self, now: float) -> None:
        """A start did not succeed: wait before the next one."""
        pause = self._config.planner.start_backoff_s * 2**self._num_failures
        self._no_start_before = now + min(pause, self._config.planner.max_start_backoff_s)
        self._num_failures += 1

    def start_succeeded(self) -> None:
        self._num_failures = 0

    def _repair(self, pool: PoolObservation, now: float) -> PlanningDecision | None:
        """Back into [min, max] first."""
        config, num_present = self._config, pool.num_present
        if num_present >= config.min_workers:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        if self._missing_since is not None and now - self._missing_since >= config.planner.confirm_s:
            return self._start(pool, config.min_workers, num_present, Reason.BELOW_MIN, now)
        if len(pool.drainable) > config.max_workers and not pool.is_partial:
            return self._drain(pool, config.max_workers, Reason.ABOVE_MAX, now)
        return None

    def _grow(self, pool: PoolObservation, load: Load, now: float) -> PlanningDecision | None:
        """More at once, when the load requires it."""
        config, num_present = self._config, pool.num_present
        reason = pressure(load, config.planner)
        if not num_present and load.backlog:
            reason = Reason.QUEUE  # the first worker of a pool at zero comes for the first request
        if reason is Reason.TTFT and now - self._last_up < WINDOW_S:
            return None  # answers from before the last start are still in the percentile
        if reason is None:
            return None
        if pool.size >= config.max_workers:
            return self._hold(Reason.AT_MAX, desired=config.max_workers, blocked=reason)
        if pool.num_starting:
            return self._hold(Reason.STARTING, blocked=reason)
        if any(now - since < config.planner.confirm_s for since in self._out_since.values()):
            return self._hold(Reason.NO_LIVE_WORKER, blocked=reason)  # they are expected back
        if now - self._last_up < config.planner.cooldown_up_s:
            return self._hold(Reason.COOLDOWN, blocked=reason)
        num_usable = sum(worker.is_live for worker in pool.staying)
        return self._start(pool, max(num_wanted(pool, config), num_usable + 1), num_usable, reason, now)

    def _shrink(self, pool: PoolObservation, now: float) -> PlanningDecision:
        """One less, when that has been enough for the whole window."""
        config = self._config
        num_staying, is_least = len(pool.staying), len(pool.drainable) <= config.min_workers
        if self._quiet_since is None or is_least or pool.num_starting:
            is_partial = pool.is_partial and not is_least
            reason = Reason.PARTIAL_DATA if is_partial else Reason.STEADY
            return self._hold(reason, desired=num_staying + pool.num_starting)
        if now - self._quiet_since < config.planner.quiet_s:
            return self._hold(Reason.STABILISING, desired=num_staying, blocked=Reason.QUIET)
        return self._drain(pool, num_staying - 1, Reason.QUIET, now)

    def _start(self, pool: PoolObservation, wanted: int, supply: int, reason: Reason, now: float) -> PlanningDecision:
        config = self._config
        if now < self._no_start_before:
            return self._hold(Reason.START_FAILED, blocked=reason)
        room = config.max_workers - pool.size  # those that never came up are there, too
        if room <= 0:
            return self._hold(Reason.AT_MAX, blocked=reason)
        count = min(wanted - supply, room, config.planner.max_step_up)
        self._last_up = now
        desired = pool.num_present + count
        return PlanningDecision(direction=Direction.UP, reason=reason, desired=desired, num_start=count)

    def _drain(self, pool: PoolObservation, desired: int, reason: Reason, now: float) -> PlanningDecision:
        if pool.num_leaving or len(pool.staying) < len(pool.workers):
            return self._hold(Reason.DRAIN_IN_PROGRESS, blocked=reason)
        if now - max(self._last_down, self._last_up) < self._config.planner.cooldown_down_s:
            return self._hold(Reason.COOLDOWN, blocked=reason)
        live = [worker for worker in pool.drainable if worker.is_live]
        if len(live) <= self._config.min_workers or not live:
            return self._hold(Reason.NO_LIVE_WORKER, blocked=reason)
        victim = min(live, key=lambda w: (w.num_seqs, w.num_queued_tokens, -self._first_seen[_name(w)]))
        self._last_down = now
        return PlanningDecision(direction=Direction.DOWN, reason=reason, desired=desired, victim=victim.worker_id)

    def _hold(self, reason: Reason, *, desired: int | None = None, blocked: Reason | None = None) -> PlanningDecision:
        size = self._desired if desired is None else desired
        return PlanningDecision(direction=Direction.HOLD, reason=reason, desired=size, blocked=blocked)

    def _track(self, pool: PoolObservation, load: Load, now: float) -> None:
        """Remember since when workers are known or out, and what the load required."""
        names = {_name(worker) for worker in pool.workers}
        self._first_seen = {name: order for name, order in self._first_seen.items() if name in names}
        for worker in pool.workers:
            if _name(worker) not in self._first_seen:
                self._num_seen += 1
                self._first_seen[_name(worker)] = self._num_seen
        out = [worker.worker_id for worker in pool.workers if not worker.is_live]
        self._out_since = {worker_id: self._out_since.get(worker_id, now) for worker_id in out}
        is_gap = now - self._seen_at > self._config.planner.max_gap_s
        self._seen_at = now
        if pool.is_partial or not is_quiet(load, self._config.planner):
            self._quiet_since = None
        elif self._quiet_since is None or is_gap:
            self._quiet_since = now

    def _forget_window(self) -> None:
        """Forget: what was not seen may have been a peak."""
        self._quiet_since = None
        self._missing_since = None


def _name(worker: WorkerLoad) -> str:
    return f"{worker.worker_id}/{worker.incarnation}"
