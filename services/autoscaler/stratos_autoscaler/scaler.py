"""The control loop: look, decide, act, once per interval.

Looking needs both peers, the routers (load) and the backend (what starts or drains).  Without either there is no
data, and the planner holds; so it does while another autoscaler holds the backend's lease.  A start runs in the
background, because a worker takes a while to serve; until a router shows it, it counts as starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.planning.demand import Reason
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.observation import PoolObservation, observe
from stratos.planning.planner import Decision, Direction, PoolPlanner
from stratos.planning.settings import PoolKey
from stratos_autoscaler.backends.base import Backend, BackendWorker
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.settings import AutoscalerSettings

_log = logging.getLogger(__name__)
T = TypeVar("T")
SHOWN_WITHIN_S = 10.0
"""A new worker that the router does not show by then is not waited for any more."""


class FleetSource(Protocol):
    """Where the fleet comes from: ``routers.RouterFleets``."""

    async def fleet(self) -> FleetSum:
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

    key: PoolKey
    planner: PoolPlanner
    starts: list[_Start] = field(default_factory=list)
    last: Decision | None = None


class Scaler:
    """Keeps the pools of one deployment.

    Args:
        routers: source of the load.
        backend: starts and drains.
        settings: of the autoscaler.
        metrics: of the autoscaler.
        clock: monotonic.
    """

    def __init__(
        self,
        routers: FleetSource,
        backend: Backend,
        settings: AutoscalerSettings,
        metrics: AutoscalerMetrics,
        clock: Clock,
    ) -> None:
        self._routers = routers
        self._backend = backend
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._pools = [_Pool(config.bounds.key, PoolPlanner(config)) for config in settings.pool_configs()]
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
        found, owned = await asyncio.gather(
            self._ask("router", self._routers.fleet()), self._ask("supervisor", self._ask_backend())
        )
        now = self._clock.now()
        is_active, workers = owned or (False, ())
        self._metrics.is_active.set(is_active)
        self._metrics.routers_missing.set(0 if found is None else found.num_missing)
        for pool in self._pools:
            self._reap(pool, found, now)
            observation = None
            if found is not None and is_active:
                observation = self._observe(pool, found, workers)
            why_none = Reason.NO_DATA if owned is None or is_active else Reason.STANDBY
            decision = pool.planner.decide(observation, now, why_none=why_none)
            self._metrics.show(pool.key, observation, decision)
            self._report(pool, decision)
            await self._act(pool, decision)

    async def close(self) -> None:
        """Forget the starts under way; the backend finishes them, or not."""
        tasks = [start.task for pool in self._pools for start in pool.starts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_backend(self) -> tuple[bool, tuple[BackendWorker, ...]]:
        """Whether this autoscaler is the one that acts, and every worker."""
        return await self._backend.hold_lease(self._settings.lease_ttl_s), await self._backend.workers()

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

    def _observe(self, pool: _Pool, found: FleetSum, workers: tuple[BackendWorker, ...]) -> PoolObservation:
        shown, key = _shown(found), pool.key
        own = [worker for worker in workers if worker.role is key.role and key.holds_model(worker.model_digest)]
        return observe(
            found.fleet,
            key,
            models={worker.worker_id: worker.model_digest for worker in workers},
            num_starting=len(pool.starts),
            num_leaving=sum(worker.is_draining and worker.worker_id not in shown for worker in own),
            is_partial=found.num_missing > 0,
        )

    def _reap(self, pool: _Pool, found: FleetSum | None, now: float) -> None:
        """Starts that failed, and those whose worker a router shows, are over."""
        shown = _shown(found)
        still = []
        for start in pool.starts:
            if not start.task.done():
                still.append(start)
            elif (error := start.task.exception()) is not None:
                if not isinstance(error, StratosError):
                    raise error
                _log.warning("starting a %s worker failed: %s", pool.key.role, error.message)
                self._metrics.acted(pool.key, "start", "failed")
                pool.planner.start_failed(now)
            else:
                if start.served_at is None:
                    start.served_at = now
                    _log.info("%s worker %s serves", pool.key.role, start.task.result())
                    self._metrics.acted(pool.key, "start", "done")
                    pool.planner.start_succeeded()
                if start.task.result() not in shown and now - start.served_at < SHOWN_WITHIN_S:
                    still.append(start)
        pool.starts = still

    async def _act(self, pool: _Pool, decision: Decision) -> None:
        for _ in range(decision.num_start):
            pool.starts.append(_Start(asyncio.create_task(self._backend.start(pool.key))))
        if decision.direction is Direction.DOWN:
            try:
                await self._backend.drain(decision.victim)
            except StratosError as error:
                _log.warning("draining %s failed: %s", decision.victim, error.message)
                self._metrics.acted(pool.key, "drain", "failed")
            else:
                self._metrics.acted(pool.key, "drain", "done")

    def _report(self, pool: _Pool, decision: Decision) -> None:
        """Log changes of mind, not every second."""
        last = pool.last
        if decision.direction is not Direction.HOLD:
            _log.info(
                "%s pool: %s to %d workers because of %s%s",
                pool.key.role,
                decision.direction,
                decision.desired,
                decision.reason,
                f", draining {decision.victim}" if decision.victim else "",
            )
        elif last is None or last.reason is not decision.reason:
            _log.debug("%s pool: holding because of %s", pool.key.role, decision.reason)
        pool.last = decision


def _shown(found: FleetSum | None) -> set[str]:
    return set() if found is None else {worker.ref.worker_id for worker in found.fleet.workers}
