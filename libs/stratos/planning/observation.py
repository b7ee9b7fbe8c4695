"""Observations of pools, taken from the router's view of the fleet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.gateway_load import num_batch_lines_due, ttft_percentile
from stratos.core.requests.limits import BATCH_CLASS
from stratos.planning.settings import PoolKey

MAX_AGE_S = 10.0
"""A worker that was draining and has been silent for so long is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One worker of the pool."""

    worker_id: str
    incarnation: str = ""
    is_live: bool = True
    is_draining: bool = False
    is_resting: bool = False
    """It sleeps, or is on its way there or back."""
    is_owned: bool = True
    """The backend has it; others help with the load, and are not the autoscaler's to drain."""
    num_seqs: int = 0
    """Running, waiting, on their way there."""
    num_running: int = 0
    """In the batch."""
    num_waiting: int = 0
    """There, for a place in the batch."""
    num_queued_tokens: int = 0
    num_used_blocks: int = 0
    num_total_blocks: int = 0
    block_size: int = 16
    max_num_seqs: int = 0
    is_clear: bool = False
    """It takes no request of the lowest class now, since others come."""

    @property
    def num_left_slots(self) -> int:
        """Batch slots that are left to higher classes."""
        return max(0, self.max_num_seqs - self.num_seqs) if self.is_clear else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObservation:
    """One pool at one moment."""

    workers: tuple[WorkerLoad, ...] = ()
    queue_depth: int = 0
    """Requests that wait at the routers for this pool, without those of the lowest class that would run if no worker
    was left to higher ones: they want no further worker."""
    queued_tokens: int = 0
    """Their prompt tokens."""
    num_starting: int = 0
    """Workers that were started and are not among ``workers`` yet."""
    num_leaving: int = 0
    """Workers that drain and are not among ``workers`` any more."""
    num_owned: int = 0
    """Workers that the backend has or should have and that do not drain, whether or not they ever came up."""
    is_partial: bool = False
    """Some router did not answer: there may be more load than this."""
    ttft_p95_s: float | None = None
    """Time to first token of the last minute's answers; ``None`` where there was none."""
    num_batch_lines_due: int = 0
    """Lines of batches to be answered within an hour, by this pool and the model's others together."""

    @property
    def backlog(self) -> int:
        """Requests that wait, at routers and at workers."""
        return self.queue_depth + sum(worker.num_waiting for worker in self.workers)

    @property
    def num_present(self) -> int:
        """Workers that do not drain, those that start included."""
        return len(self.staying) + self.num_starting

    @property
    def size(self) -> int:
        """Workers that there should be: a pool whose workers all fail to start is no empty one."""
        return max(self.num_present, self.num_owned)

    @property
    def staying(self) -> tuple[WorkerLoad, ...]:
        """Workers that do not drain."""
        return tuple(worker for worker in self.workers if not worker.is_draining)

    @property
    def drainable(self) -> tuple[WorkerLoad, ...]:
        """Workers of ``staying`` that the backend has."""
        return tuple(worker for worker in self.staying if worker.is_owned)


def observe(
    fleet: Fleet,
    pool: PoolKey,
    *,
    models: Mapping[str, str] | None = None,
    owned: Collection[str] | None = None,
    num_owned: int = 0,
    num_starting: int = 0,
    num_leaving: int = 0,
    is_partial: bool = False,
) -> PoolObservation:
    """One pool in the fleet.

    Spares and spot workers are no part of it.  A model's backlog counts whether or not a worker of it lives: that is
    how a pool at zero is woken.

    Args:
        fleet: sum over the routers.
        pool: role and model.
        models: model by id of workers, as the backend knows them; for workers that have sent no status yet.
        owned: ids of the workers that the backend has; ``None``: all.
        num_owned, num_starting, num_leaving, is_partial: as in ``PoolObservation``.
    """
    started = models or {}
    lasting = [worker for worker in fleet.workers if not (worker.is_spare or worker.is_spot)]
    members = [worker for worker in lasting if worker.ref.role is pool.role and _is_in(worker, pool, started)]
    gateways = [load for load in fleet.gateways if pool.holds_model(load.model_digest)]
    loads = [replace(_load(one), is_owned=owned is None or one.ref.worker_id in owned) for one in members]
    waiting = [q for q in fleet.queues if q.work.role is pool.role and pool.holds_model(q.model_digest)]
    queues = _without_held_back(waiting, sum(load.num_left_slots for load in loads))
    return PoolObservation(
        workers=tuple(loads),
        queue_depth=sum(queue.num_requests for queue in queues),
        queued_tokens=sum(queue.num_tokens for queue in queues),
        num_owned=num_owned,
        num_starting=num_starting,
        num_leaving=num_leaving,
        is_partial=is_partial,
        ttft_p95_s=ttft_percentile(gateways, 0.95),
        num_batch_lines_due=num_batch_lines_due(gateways) or 0,
    )


def _without_held_back(queues: Sequence[QueueDepth], num_slots: int) -> list[QueueDepth]:
    """Queues without as many requests of the lowest class as there are slots that are left to higher ones."""
    found = []
    for queue in queues:
        num_held = min(num_slots, queue.num_requests) if queue.priority_class >= BATCH_CLASS else 0
        num_slots -= num_held
        num_left = queue.num_requests - num_held
        num_tokens = queue.num_tokens * num_left // max(1, queue.num_requests)
        found.append(replace(queue, num_requests=num_left, num_tokens=num_tokens))
    return found


def _is_in(worker: FleetWorker, pool: PoolKey, started: Mapping[str, str]) -> bool:
    status = worker.status
    return pool.holds_model(started.get(worker.ref.worker_id, "") if status is None else status.identity.model_digest)


def _load(worker: FleetWorker) -> WorkerLoad:
    status = worker.status
    if status is None:
        return WorkerLoad(worker_id=worker.ref.worker_id, is_live=False)
    is_draining = status.is_draining and worker.age_s < MAX_AGE_S
    if not worker.is_live and not is_draining:
        # its requests are being moved elsewhere and are counted there
        return WorkerLoad(
            worker_id=worker.ref.worker_id,
            incarnation=status.ref.incarnation,
            is_live=False,
            is_resting=worker.is_resting,
        )
    engine, blocks = status.engine, status.engine.blocks
    return WorkerLoad(
        worker_id=worker.ref.worker_id,
        incarnation=status.ref.incarnation,
        is_live=worker.is_live,
        is_draining=is_draining,
        num_seqs=engine.num_running + engine.num_waiting + status.num_handoffs + worker.num_booked,
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
        num_queued_tokens=engine.num_queued_tokens,
        num_used_blocks=blocks.allocated + blocks.reserved + blocks.fenced,
        num_total_blocks=blocks.total,
        block_size=status.block_size,
        max_num_seqs=status.max_num_seqs,
        is_clear=worker.is_clear,
    )


def count_states(pool: PoolObservation) -> dict[str, int]:
    """Workers by state, for people and metrics."""
    return {
        "live": sum(worker.is_live for worker in pool.workers),
        "asleep": sum(worker.is_resting for worker in pool.workers),
        "out": sum(not (worker.is_live or worker.is_draining or worker.is_resting) for worker in pool.workers),
        "draining": sum(worker.is_draining for worker in pool.workers) + pool.num_leaving,
        "starting": pool.num_starting,
    }
