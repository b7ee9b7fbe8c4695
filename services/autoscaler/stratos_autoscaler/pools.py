"""One managed pool: its part of the fleet, and the workers that are being started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stratos.common.errors import StratosError
from stratos.core.fleet import Fleet
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.observation import PoolObservation, observe
from stratos.planning.planner import PlanningDecision, PoolPlanner
from stratos.planning.settings import PoolConfig, PoolKey
from stratos_autoscaler.backends.base import BackendWorker
from stratos_autoscaler.metrics import AutoscalerMetrics

_log = logging.getLogger(__name__)
SHOWN_WITHIN_S = 10.0
"""A new worker that the router does not show by then is not waited for any more."""


@dataclass(slots=True)
class _Start:
    """A worker that is being started."""

    task: asyncio.Task[str]
    served_at: float | None = None


@dataclass(slots=True)
class ManagedPool:
    """Belongs to the event loop."""

    config: PoolConfig
    planner: PoolPlanner
    key: PoolKey
    """Has the model's digest, once that is known."""
    starts: list[_Start] = field(default_factory=list)
    last: PlanningDecision | None = None

    def add_start(self, task: asyncio.Task[str]) -> None:
        """A worker is being started."""
        self.starts.append(_Start(task))

    def reap(self, found: FleetSum | None, now: float, metrics: AutoscalerMetrics) -> None:
        """Starts that failed, and those whose worker a router or the backend shows, are over."""
        shown = shown_workers(found)
        still = []
        for start in self.starts:
            if not start.task.done():
                still.append(start)
            elif (error := start.task.exception()) is not None:
                if not isinstance(error, StratosError):
                    raise error
                _log.warning("starting a %s worker failed: %s", self.key.role, error.message)
                metrics.acted(self.key, "start", "failed")
                self.planner.start_failed(now)
            else:
                if start.served_at is None:
                    start.served_at = now
                    _log.info("%s worker %s", self.key.role, start.task.result() or "was asked for")
                    metrics.acted(self.key, "start", "done")
                    self.planner.start_succeeded()
                name = start.task.result()
                if name and name not in shown and now - start.served_at < SHOWN_WITHIN_S:
                    still.append(start)
        self.starts = still

    def observe(self, found: FleetSum, workers: Sequence[BackendWorker]) -> PoolObservation:
        """The pool, as routers and the backend see it."""
        shown, key = shown_workers(found), self.key
        own = [worker for worker in workers if _is_of(worker, key)]
        aside = {worker.ref.worker_id for worker in found.fleet.workers if worker.is_spare or worker.is_spot}
        is_starting = [worker.is_starting and worker.worker_id not in shown for worker in own]
        return observe(
            _without_unnamed(found.fleet, workers),
            key,
            models={worker.worker_id: worker.model_digest or key.model_digest for worker in own},
            owned={worker.worker_id for worker in own},
            num_owned=sum(not worker.is_draining and worker.worker_id not in aside for worker in own),
            num_starting=max(len(self.starts), sum(is_starting)),
            num_leaving=sum(worker.is_draining and worker.worker_id not in shown for worker in own),
            is_partial=found.num_missing > 0,
        )

    def observe_unknown(self, workers: Sequence[BackendWorker]) -> PoolObservation:
        """The pool, as the backend alone sees it: routers name no worker of a model whose digest is not known."""
        own = [
            worker for worker in workers if worker.role is self.key.role and worker.model_name == self.key.model_name
        ]
        staying = [worker for worker in own if not worker.is_draining]
        return PoolObservation(num_owned=len(staying), num_starting=len(staying), num_leaving=len(own) - len(staying))


def shown_workers(found: FleetSum | None) -> set[str]:
    """Ids of the workers that routers know."""
    return set() if found is None else {worker.ref.worker_id for worker in found.fleet.workers}


def _is_of(worker: BackendWorker, key: PoolKey) -> bool:
    if worker.role is not key.role:
        return False
    return worker.model_name == key.model_name if worker.model_name else key.holds_model(worker.model_digest)


def _without_unnamed(fleet: Fleet, workers: Sequence[BackendWorker]) -> Fleet:
    """Discovery by addresses names a worker only after its first status: until then the backend's list has it."""
    known = {worker.worker_id for worker in workers}
    kept = tuple(w for w in fleet.workers if w.status is not None or not known or w.ref.worker_id in known)
    return replace(fleet, workers=kept)
