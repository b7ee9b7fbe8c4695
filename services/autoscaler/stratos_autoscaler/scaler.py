"""The control loop: look, decide, act, once per interval.

Looking needs both peers, the router (load) and the backend (what starts or drains).  Without either there is no
data, and the planner holds.  A start runs in the background, because a worker takes a while to serve; until the
router shows it, it counts as starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.core.fleet import Fleet
from stratos.core.placement import WorkerRole
from stratos.planning.observation import PoolObservation, observe
from stratos.planning.planner import Decision, Direction, PoolPlanner
from stratos_autoscaler.backends.base import Backend, BackendWorker
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.settings import AutoscalerSettings

_log = logging.getLogger(__name__)
T = TypeVar("T")
SHOWN_WITHIN_S = 10.0
"""A new worker that the router does not show by then is not waited for any more."""


class FleetSource(Protocol):
    """Where the fleet comes from: the router's client."""

    async def fleet(self) -> Fleet:
        """Queues and workers now."""
        ...


@dataclass(slots=True)
class _Start:
    """A worker that was asked for."""

    task: asyncio.Task[str]
    served_at: float | None = None


@dataclass(slots=True)
class _Pool:
    """One managed pool."""

    role: WorkerRole
    planner: PoolPlanner
    starts: list[_Start] = field(default_factory=list)
    last: Decision | None = None


class Scaler:
    """Keeps the pools of one deployment.

    Args:
        router: source of the load.
        backend: starts and drains.
        settings: of the autoscaler.
        metrics: of the autoscaler.
        clock: monotonic.
    """

    def __init__(
        self,
        router: FleetSource,
        backend: Backend,
        settings: AutoscalerSettings,
        metrics: AutoscalerMetrics,
        clock: Clock,
    ) -> None:
        self._router = router
        self._backend = backend
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._pools = [_Pool(pool.role, PoolPlanner(pool)) for pool in settings.pools()]
        self._heard_at = {"router": clock.now(), "supervisor": clock.now()}
        self._problem = {"router": "", "supervisor": ""}

    def not_ready_reason(self) -> str:
        """A peer that has not answered for long; there are no decisions until it does."""
        now = self._clock.now()
        for peer, heard_at in self._heard_at.items():
            if now - heard_at > self._settings.not_ready_after_s:
                return f"the {peer} has not answered for {now - heard_at:.0f} s: {self._problem[peer]}"
        return ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(self._settings.poll_interval_s)

    async def turn(self) -> None:
        """Look, decide, act once."""
        fleet, workers = await asyncio.gather(
            self._ask("router", self._router.fleet()), self._ask("supervisor", self._backend.workers())
        )
        now = self._clock.now()
        for pool in self._pools:
            self._reap(pool, fleet, now)
            observation = None if fleet is None or workers is None else self._observe(pool, fleet, workers)
            decision = pool.planner.decide(observation, now)
            self._metrics.show(pool.role, observation, decision)
            self._report(pool, decision)
            await self._act(pool, decision)

    async def close(self) -> None:
        """Forget the starts under way; the backend finishes them, or not."""
        tasks = [start.task for pool in self._pools for start in pool.starts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, peer: str, answer: Awaitable[T]) -> T | None:
        try:
            found = await answer
        except StratosError as error:
            if self._problem[peer] != error.message:
                _log.warning("no data: %s", error.message)
            self._problem[peer] = error.message
            self._metrics.poll_failures.labels(peer).inc()
            return None
        self._problem[peer], self._heard_at[peer] = "", self._clock.now()
        return found

    def _observe(self, pool: _Pool, fleet: Fleet, workers: tuple[BackendWorker, ...]) -> PoolObservation:
        shown = {worker.ref.worker_id for worker in fleet.workers}
        leaving = [w for w in workers if w.role is pool.role and w.is_draining and w.worker_id not in shown]
        return observe(fleet, pool.role, num_starting=len(pool.starts), num_leaving=len(leaving))

    def _reap(self, pool: _Pool, fleet: Fleet | None, now: float) -> None:
        """Starts that failed, and those whose worker the router shows, are over."""
        shown = set() if fleet is None else {worker.ref.worker_id for worker in fleet.workers}
        still = []
        for start in pool.starts:
            if not start.task.done():
                still.append(start)
            elif (error := start.task.exception()) is not None:
                if not isinstance(error, StratosError):
                    raise error
                _log.warning("starting a %s worker failed: %s", pool.role, error.message)
                self._metrics.actions.labels(pool.role, "start", "failed").inc()
                pool.planner.start_failed(now)
            else:
                if start.served_at is None:
                    start.served_at = now
                    _log.info("%s worker %s serves", pool.role, start.task.result())
                    self._metrics.actions.labels(pool.role, "start", "done").inc()
                    pool.planner.start_succeeded()
                if start.task.result() not in shown and now - start.served_at < SHOWN_WITHIN_S:
                    still.append(start)
        pool.starts = still

    async def _act(self, pool: _Pool, decision: Decision) -> None:
        for _ in range(decision.num_start):
            pool.starts.append(_Start(asyncio.create_task(self._backend.start(pool.role))))
        if decision.direction is Direction.DOWN:
            try:
                await self._backend.drain(decision.victim)
            except StratosError as error:
                _log.warning("draining %s failed: %s", decision.victim, error.message)
                self._metrics.actions.labels(pool.role, "drain", "failed").inc()
            else:
                self._metrics.actions.labels(pool.role, "drain", "done").inc()

    def _report(self, pool: _Pool, decision: Decision) -> None:
        """Log changes of mind, not every second."""
        last = pool.last
        if decision.direction is not Direction.HOLD:
            _log.info(
                "%s pool: %s to %d workers because of %s%s",
                pool.role,
                decision.direction,
                decision.desired,
                decision.reason,
                f", draining {decision.victim}" if decision.victim else "",
            )
        elif last is None or last.reason is not decision.reason:
            _log.debug("%s pool: holding because of %s", pool.role, decision.reason)
        pool.last = decision
