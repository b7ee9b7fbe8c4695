"""The control loop: look, decide, act, once per interval.

Looking needs both peers, the routers (load) and the backend (what starts or drains).  Without either there is no
data, and every pool stays as it is; so it does while another autoscaler holds the backend's lease.  A start runs in the
background, because a worker takes a while to serve; until a router shows it, it counts as starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.planning.demand import Reason, measure
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.observation import PoolObservation
from stratos.planning.planner import Direction, PlanningDecision, PoolPlanner
from stratos.planning.settings import PoolBounds, PoolConfig, ScalingMode
from stratos.planning.zero import ModelObservation, ZeroPlanner, ZeroVerdict
from stratos_autoscaler.backends.base import Backend, BackendWorker
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.history import History
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.models import ModelDigests
from stratos_autoscaler.pools import ManagedPool
from stratos_autoscaler.settings import AutoscalerSettings
from stratos_autoscaler.turns import SharedDevice

_log = logging.getLogger(__name__)
T = TypeVar("T")
Observations = Mapping[int, PoolObservation]
"""By place of the pool; pools of a model whose digest is not known are missing."""
_OWNERS = {ScalingMode.HPA: Reason.HPA, ScalingMode.EXTERNAL: Reason.EXTERNAL}
"""Modes in which something else changes the size."""


class FleetSource(Protocol):
    """Where the fleet comes from: ``routers.RouterFleets``."""

    async def fleet(self) -> FleetSum:
        """Queues and workers now."""
        ...


class Scaler:
    """Keeps the pools of one deployment.

    Args:
        routers: source of the load.
        backend: starts and drains.
        settings: of the autoscaler.
        metrics: of the autoscaler.
        board: gets every look at the routers.
        clock: monotonic.
        devices: that models share.
    """

    def __init__(
        self,
        routers: FleetSource,
        backend: Backend,
        settings: AutoscalerSettings,
        metrics: AutoscalerMetrics,
        board: LoadBoard,
        clock: Clock,
        devices: Sequence[SharedDevice] = (),
    ) -> None:
        self._routers = routers
        self._devices = devices
        self._backend = backend
        self._settings = settings
        self._metrics = metrics
        self._board = board
        self._clock = clock
        self._digests = ModelDigests(settings.pools)
        self._bounds = tuple(settings.pools)
        self._pools = [_managed(config) for config in settings.pool_configs(self._bounds)]
        self._zeros = _zero_planners(self._pools)
        self._heard_at = {"router": clock.now(), "backend": clock.now()}
        self._problem = {"router": "", "backend": ""}
        self.history = History()
        self.is_active = False

    def not_ready_reason(self) -> str:
        """A peer that has not answered for long; there are no decisions until it does.

        In a cluster the autoscaler is ready all the same: an unready backend of ``external.metrics.k8s.io`` makes that
        API unavailable, and then no namespace of the cluster can be deleted. Numbers are errors until routers answer.
        """
        if self._settings.kubernetes.namespace:
            return ""
        now, limit_s = self._clock.now(), self._settings.not_ready_after_s
        for peer in ("router", "backend") if self._settings.supervisor_address else ("router",):
            if now - self._heard_at[peer] > limit_s:
                waited_s = now - self._heard_at[peer]
                return f"the {peer} has not answered for {waited_s:.0f} s: {self._problem[peer]}"
        return ""

    @property
    def problem(self) -> str:
        """Why there is no data now; empty when there is."""
        return "; ".join(filter(None, self._problem.values()))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(self._settings.poll_interval_s)

    async def turn(self) -> None:
        """Look, decide, act once."""
        found, owned = await asyncio.gather(
            self._ask("router", self._routers.fleet()), self._ask("backend", self._ask_backend())
        )
        self.is_active, workers = owned or (False, ())
        self._metrics.is_active.set(self.is_active)
        self._metrics.routers_missing.set(1 if found is None else found.num_missing)
        self._follow(None if owned is None else self._backend.known_pools())
        await self._learn(found, workers)
        now = self._clock.now()
        for pool in self._pools:
            pool.reap(found, now, self._metrics)
        seen: dict[int, PoolObservation] = {}
        if not self.is_active:
            for device in self._devices:
                device.leave()
        if found is not None and self.is_active:
            for device in self._devices:
                device.look(found.fleet)
            seen = {
                place: pool.observe(found, workers)
                for place, pool in enumerate(self._pools)
                if self._digests.key(pool.config.bounds) is not None
            }
        verdicts = self._verdicts(seen, found, now)
        why_none = Reason.NO_DATA if owned is None or self.is_active else Reason.STANDBY
        if why_none is Reason.STANDBY:
            self._metrics.forget_desired()
        unknown = self._unknown(workers) if found is not None and self.is_active else {}
        for place, pool in enumerate(self._pools):
            verdict = verdicts.get(pool.key.model_name, ZeroVerdict.AWAKE)
            decision = self._decide(pool, seen.get(place), verdict, now, why_none)
            self._note(pool, seen.get(place), decision, now)
            if place in unknown:
                self._metrics.show_size(pool.key, unknown[place], unknown[place].size)
            await self._act(pool, decision)
        await self._mark(seen)

    async def close(self) -> None:
        """Forget the starts under way; the backend finishes them, or not."""
        tasks = [start.task for pool in self._pools for start in pool.starts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for device in self._devices:
            await device.close()

    async def _ask_backend(self) -> tuple[bool, tuple[BackendWorker, ...]]:
        """Whether this autoscaler is the one that acts, and every worker."""
        return await self._backend.hold_lease(), await self._backend.workers()

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

    def _follow(self, bounds: Sequence[PoolBounds] | None) -> None:
        """Take in pools that came, changed or went; what is known of those that stay is kept."""
        if bounds is None or tuple(bounds) == self._bounds:
            return
        before = {pool.config.bounds.key: pool for pool in self._pools}
        self._pools = [
            _taken_over(config, before.pop(config.bounds.key, None)) for config in self._settings.pool_configs(bounds)
        ]
        for gone in before.values():
            for start in gone.starts:
                start.task.cancel()
        self._bounds = tuple(bounds)
        self._digests.follow(self._bounds)
        self.history.keep_open({pool.key for pool in bounds})
        zeros = _zero_planners(self._pools)
        self._zeros = {model: self._zeros.get(model, planner) for model, planner in zeros.items()}
        self._metrics.forget_pools()
        _log.info("pools: %s", ", ".join(f"{b.role.value} of {b.key.shown_name}" for b in self._bounds) or "none")

    async def _learn(self, found: FleetSum | None, workers: tuple[BackendWorker, ...]) -> None:
        """Which digests the pools' models have, and what the load is, acting or not."""
        if found is None:
            return
        news = self._digests.learn(found.fleet, workers, await self._backend.digests())
        for name, digest in news.items() if self.is_active else ():
            await self._try(f"noting the digest of {name}", self._backend.note_digest(name, digest))
        known = []
        for pool in self._pools:
            if (key := self._digests.key(pool.config.bounds)) is not None:
                pool.key = key
                known.append(key)
        self._board.show_fleet(found, known)

    def _unknown(self, workers: tuple[BackendWorker, ...]) -> Observations:
        """Pools whose model's digest is not known: none of their workers ever lived, and the backend has them alone."""
        return {
            place: pool.observe_unknown(workers)
            for place, pool in enumerate(self._pools)
            if self._digests.key(pool.config.bounds) is None
        }

    def _verdicts(self, seen: Observations, found: FleetSum | None, now: float) -> dict[str, ZeroVerdict]:
        """A verdict for every model whose pools may be empty."""
        verdicts = {}
        for model, planner in self._zeros.items():
            places = [place for place, pool in enumerate(self._pools) if pool.key.model_name == model]
            whole = None
            if found is not None and all(place in seen for place in places):
                key = self._pools[places[0]].key
                num_open = sum(load.num_open for load in found.fleet.gateways if key.holds_model(load.model_digest))
                whole = ModelObservation(pools=[seen[place] for place in places], num_open=num_open)
            verdicts[model] = planner.decide(whole, now)
        return verdicts

    def _decide(
        self, pool: ManagedPool, seen: PoolObservation | None, verdict: ZeroVerdict, now: float, why_none: Reason
    ) -> PlanningDecision:
        if seen is None:
            held = pool.planner.decide(None, now, why_none=why_none)
            return held if pool.last is None else replace(held, desired=pool.last.desired)
        mode, size = pool.config.bounds.mode, seen.size
        hold = PlanningDecision(
            direction=Direction.HOLD, reason=Reason.ASLEEP, desired=size, load=measure(seen, pool.config)
        )
        if any(device.rests(pool.key.model_digest) for device in self._devices):
            return replace(hold, desired=0)
        if verdict is ZeroVerdict.WAKE and not size:
            return replace(hold, direction=Direction.UP, reason=Reason.WAKE, desired=1, num_start=1)
        if verdict is ZeroVerdict.SLEEP:
            return self._sleep(hold, seen)
        if verdict is ZeroVerdict.ASLEEP:
            return hold
        if mode is ScalingMode.PLANNER:
            return pool.planner.decide(seen, now)
        return replace(hold, reason=_OWNERS.get(mode, Reason.NOT_MANAGED))

    def _sleep(self, hold: PlanningDecision, seen: PoolObservation) -> PlanningDecision:
        live = [worker for worker in seen.staying if worker.is_live]
        if not live:
            return replace(hold, reason=Reason.NO_LIVE_WORKER, blocked=Reason.IDLE)
        return replace(hold, direction=Direction.DOWN, reason=Reason.IDLE, desired=0, victim=live[0].worker_id)

    async def _act(self, pool: ManagedPool, decision: PlanningDecision) -> None:
        for _ in range(decision.num_start):
            pool.add_start(asyncio.create_task(self._backend.start(pool.key)))
        if decision.direction is Direction.DOWN:
            is_done = await self._try(f"draining {decision.victim}", self._backend.drain(decision.victim))
            self._metrics.acted(pool.key, "drain", "done" if is_done else "failed")

    async def _mark(self, seen: Observations) -> None:
        """Where an HPA, KEDA's too, shrinks a pool, the worker with the least work leaves."""
        loads = {
            worker.worker_id: worker.num_seqs
            for place, pool in seen.items()
            if self._pools[place].config.bounds.mode in _OWNERS
            for worker in pool.staying
        }
        if loads:
            await self._try("marking victims", self._backend.mark(loads))

    async def _try(self, what: str, work: Awaitable[None]) -> bool:
        try:
            await work
        except StratosError as error:
            _log.warning("%s failed: %s", what, error.message)
            return False
        return True

    def _note(self, pool: ManagedPool, seen: PoolObservation | None, decision: PlanningDecision, now: float) -> None:
        """Show a decision; log changes of mind, not every second."""
        self._metrics.show(pool.key, seen, decision)
        self._metrics.show_bounds(pool.config.bounds)
        self.history.add_decision(pool.config.bounds.key, pool.config.bounds.mode, decision, seen, now)
        last, pool.last = pool.last, decision
        if decision.direction is not Direction.HOLD:
            what = f"{decision.direction} to {decision.desired} workers because of {decision.reason}"
            _log.info("%s pool: %s%s", pool.key.role, what, f", draining {decision.victim}" * bool(decision.victim))
        elif last is None or last.reason is not decision.reason:
            _log.debug("%s pool: holding because of %s", pool.key.role, decision.reason)


def _managed(config: PoolConfig) -> ManagedPool:
    """0 <-> 1 is not the pool planner's: it keeps one worker as long as its model is awake."""
    awake = replace(config.bounds, min_workers=max(1, config.min_workers), max_workers=max(1, config.max_workers))
    return ManagedPool(config, PoolPlanner(replace(config, bounds=awake)), config.bounds.key)


def _taken_over(config: PoolConfig, before: ManagedPool | None) -> ManagedPool:
    """A pool that was there before with its starts, and as it is where its bounds are the same."""
    if before is not None and before.config == config:
        return before
    pool = _managed(config)
    if before is not None:
        pool.key, pool.starts, pool.last = before.key, before.starts, before.last
    return pool


def _zero_planners(pools: list[ManagedPool]) -> dict[str, ZeroPlanner]:
    """By model whose every pool may be empty and is scaled at all."""
    may_sleep: dict[str, bool] = {}
    for pool in pools:
        bounds, name = pool.config.bounds, pool.key.model_name
        is_ours = bounds.mode in (ScalingMode.HPA, ScalingMode.PLANNER)
        may_sleep[name] = may_sleep.get(name, True) and is_ours and not bounds.min_workers
    planner = pools[0].config.planner if pools else None
    if planner is None:
        return {}
    return {name: ZeroPlanner(planner.idle_s, planner.max_gap_s) for name, may in may_sleep.items() if may}
