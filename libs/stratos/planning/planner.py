"""Decides the size of one pool.

Up at once, down one worker at a time after a quiet window without gaps.  The steps of a decision:
    no data, or another autoscaler acts -> hold
    fewer than the minimum, confirmed -> start;  more than the maximum -> drain
    more wanted than there are -> start (not while one starts, not in a cooldown)
    a router did not answer -> start where that is wanted, but drain none
    fewer wanted for the whole quiet window, survivors below ``down_utilisation`` -> drain the least loaded, newest

Holding is a decision with a reason.  Missing data never changes a pool.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from stratos.planning.demand import Demand, Reason, demand, queue_demand
from stratos.planning.observation import PoolObservation, WorkerLoad
from stratos.planning.settings import PoolConfig

NEVER = float("-inf")


class Direction(enum.StrEnum):
    """What to do with the pool."""

    UP = "up"
    DOWN = "down"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, and why."""

    direction: Direction
    reason: Reason
    desired: int
    """Workers the pool should have."""
    num_start: int = 0
    victim: str = ""
    """Worker to drain; empty unless ``direction`` is DOWN."""


class PoolPlanner:
    """Planner of one pool; remembers what stabilisation needs."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._wanted: deque[tuple[float, int]] = deque()
        """(time, workers wanted at ``down_utilisation``, or by a backlog) over the quiet window, without gaps."""
        self._window_begin = NEVER
        self._last_up = self._last_down = NEVER
        self._missing_since: float | None = None
        self._out_since: dict[str, float] = {}
        self._first_seen: dict[str, int] = {}
        self._num_seen = 0
        self._num_failures = 0
        self._no_start_before = NEVER
        self._desired = config.min_workers

    def decide(self, pool: PoolObservation | None, now: float, *, why_none: Reason = Reason.NO_DATA) -> Decision:
        """One decision; it is taken as carried out.

        Args:
            pool: what is known of the pool; ``None`` when nothing is.
            now: monotonic seconds.
            why_none: reason to hold without an observation.
        """
        if pool is None:
            self._forget_window()
            return self._hold(why_none)
        self._track(pool, now)
        usable = [
            w for w in pool.staying if w.is_live or now - self._out_since[w.worker_id] < self._config.planner.confirm_s
        ]
        decision = self._repair(pool, now) or self._grow(pool, len(usable), now) or self._shrink(pool, now)
        self._desired = decision.desired
        return decision

    def start_failed(self, now: float) -> None:
        """A start did not succeed: wait before the next one."""
        pause = self._config.planner.start_backoff_s * 2**self._num_failures
        self._no_start_before = now + min(pause, self._config.planner.max_start_backoff_s)
        self._num_failures += 1

    def start_succeeded(self) -> None:
        self._num_failures = 0

    def _repair(self, pool: PoolObservation, now: float) -> Decision | None:
        """Back into [min, max] first."""
        config, num_present = self._config, len(pool.staying) + pool.num_starting
        if num_present >= config.min_workers:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        if self._missing_since is not None and now - self._missing_since >= config.planner.confirm_s:
            return self._start(config.min_workers, num_present, Reason.BELOW_MIN, now)
        if len(pool.staying) > config.max_workers and not pool.is_partial:
            return self._drain(pool, config.max_workers, Reason.ABOVE_MAX, now)
        return None

    def _grow(self, pool: PoolObservation, num_usable: int, now: float) -> Decision | None:
        """More at once, when the load asks for it."""
        config = self._config
        wanted = max(demand(pool, config, config.planner.up_utilisation), queue_demand(pool, config), key=_size)
        supply = num_usable + pool.num_starting
        if wanted.num_workers <= supply:
            return None
        if pool.staying and not any(worker.is_live for worker in pool.staying) and num_usable:
            return self._hold(Reason.NO_LIVE_WORKER)  # they are expected back
        if len(pool.staying) + pool.num_starting >= config.max_workers:
            return self._hold(Reason.AT_MAX, desired=config.max_workers)
        if pool.num_starting:
            return self._hold(Reason.STARTING)
        if now - self._last_up < config.planner.cooldown_up_s:
            return self._hold(Reason.COOLDOWN)
        return self._start(wanted.num_workers, supply, wanted.reason, now, num_present=len(pool.staying))

    def _shrink(self, pool: PoolObservation, now: float) -> Decision:
        """One less, when that has been enough for the whole window."""
        config = self._config
        num_staying = len(pool.staying)
        max_wanted = max(config.min_workers, *(count for _, count in self._wanted))
        if pool.num_starting or pool.queue_depth or max_wanted >= num_staying:
            # "steady" while the latest demand needs everyone, "stabilising" when only the past did
            is_steady = max(config.min_workers, self._wanted[-1][1]) >= num_staying
            return self._hold(
                Reason.STEADY if is_steady else Reason.STABILISING, desired=num_staying + pool.num_starting
            )
        if pool.is_partial:
            return self._hold(Reason.PARTIAL_DATA, desired=num_staying)
        if now - self._window_begin < config.planner.quiet_s:
            return self._hold(Reason.STABILISING, desired=num_staying)
        return self._drain(pool, num_staying - 1, Reason.QUIET, now)

    def _start(
        self, wanted: int, supply: int, reason: Reason, now: float, *, num_present: int | None = None
    ) -> Decision:
        config = self._config
        if now < self._no_start_before:
            return self._hold(Reason.START_FAILED)
        present = supply if num_present is None else num_present
        count = min(wanted - supply, config.max_workers - present, config.planner.max_step_up)
        self._last_up = now
        return Decision(direction=Direction.UP, reason=reason, desired=present + count, num_start=count)

    def _drain(self, pool: PoolObservation, desired: int, reason: Reason, now: float) -> Decision:
        if pool.num_leaving or len(pool.staying) < len(pool.workers):
            return self._hold(Reason.DRAIN_IN_PROGRESS)
        if now - max(self._last_down, self._last_up) < self._config.planner.cooldown_down_s:
            return self._hold(Reason.COOLDOWN)
        live = [worker for worker in pool.staying if worker.is_live]
        if len(live) <= self._config.min_workers or not live:
            return self._hold(Reason.NO_LIVE_WORKER)
        victim = min(live, key=lambda w: (w.num_seqs, w.num_queued_tokens, -self._first_seen[_name(w)]))
        self._last_down = now
        return Decision(direction=Direction.DOWN, reason=reason, desired=desired, victim=victim.worker_id)

    def _hold(self, reason: Reason, *, desired: int | None = None) -> Decision:
        return Decision(direction=Direction.HOLD, reason=reason, desired=self._desired if desired is None else desired)

    def _track(self, pool: PoolObservation, now: float) -> None:
        """Remember since when workers are known or out, and what the load asked for."""
        names = {_name(worker) for worker in pool.workers}
        self._first_seen = {name: order for name, order in self._first_seen.items() if name in names}
        for worker in pool.workers:
            if _name(worker) not in self._first_seen:
                self._num_seen += 1
                self._first_seen[_name(worker)] = self._num_seen
        out = [worker.worker_id for worker in pool.workers if not worker.is_live]
        self._out_since = {worker_id: self._out_since.get(worker_id, now) for worker_id in out}
        if self._wanted and now - self._wanted[-1][0] > self._config.planner.max_gap_s:
            self._forget_window()
        if not self._wanted or pool.is_partial:
            self._window_begin = now
        wanted = max(
            demand(pool, self._config, self._config.planner.down_utilisation),
            queue_demand(pool, self._config),
            key=_size,
        )
        self._wanted.append((now, wanted.num_workers))
        while self._wanted[0][0] < now - self._config.planner.quiet_s:
            self._wanted.popleft()

    def _forget_window(self) -> None:
        """What was not seen may have been a peak."""
        self._wanted.clear()
        self._missing_since = None


def _name(worker: WorkerLoad) -> str:
    return f"{worker.worker_id}/{worker.incarnation}"


def _size(found: Demand) -> int:
    return found.num_workers
