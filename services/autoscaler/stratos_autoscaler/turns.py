"""Turns of models that share a device: asks their workers to sleep and to wake, one device at a time.

The next model is woken only when all others of the device sleep, so it never holds two.  A call that fails is made
again with the next look: calls are idempotent, and a worker that came back by itself, or for another reason is awake
out of turn, is put to sleep by the same rule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.core.fleet import Fleet, FleetWorker, SleepState
from stratos.core.requests.limits import BATCH_CLASS
from stratos.planning.turns import SharerSeen, TurnConfig, TurnPlanner
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import ANY_WORKER, Dialer
from stratos_autoscaler.metrics import AutoscalerMetrics

SLEEP_MARGIN_S = 30.0
"""Beyond the time of streams: what they leave behind ends, and memory is given back."""
WAKE_TIMEOUT_S = 600.0
_log = logging.getLogger(__name__)


class WorkerCalls(Protocol):
    """Sleep and wake of workers; both raise ``StratosError``."""

    async def sleep(self, address: str, drain_s: float) -> None:
        """Returns when it sleeps."""

    async def wake(self, address: str) -> None:
        """Returns when it takes work."""


class DialedWorkers:
    """Calls workers by their addresses; ``dialer`` is called at the first call."""

    def __init__(self, dialer: Callable[[], Dialer]) -> None:
        self._dialer = dialer

    async def sleep(self, address: str, drain_s: float) -> None:
        request = worker_pb2.SleepRequest(timeout_ms=round(drain_s * 1000))
        async with self._dialer().channel(address, ANY_WORKER) as peer, translate_errors(peer=address):
            await worker_pb2_grpc.WorkerServiceStub(peer).Sleep(request, timeout=drain_s + SLEEP_MARGIN_S)

    async def wake(self, address: str) -> None:
        async with self._dialer().channel(address, ANY_WORKER) as peer, translate_errors(peer=address):
            await worker_pb2_grpc.WorkerServiceStub(peer).Wake(worker_pb2.WakeRequest(), timeout=WAKE_TIMEOUT_S)


class SharedDevice:
    """One device. Belongs to the event loop.

    Args:
        models: digests of those that share it.
        config: of turns.
        calls: reaches workers.
        metrics: of the autoscaler.
        clock: monotonic.
    """

    def __init__(
        self, models: Sequence[str], config: TurnConfig, calls: WorkerCalls, metrics: AutoscalerMetrics, clock: Clock
    ) -> None:
        self._models, self._config, self._calls = models, config, calls
        self._metrics, self._clock = metrics, clock
        self._planner = TurnPlanner(config)
        self._change: asyncio.Task[None] | None = None

    def rests(self, model: str) -> bool:
        """It is another model's turn."""
        return model in self._models and self._planner.resident not in ("", model)

    def leave(self) -> None:
        """Another autoscaler acts: what is under way is its own to finish, and turns are its own to give."""
        if self._change is not None:
            self._change.cancel()
        self._planner = TurnPlanner(self._config)

    def look(self, fleet: Fleet) -> None:
        """Begin what is to be done, unless something is under way."""
        if self._change is not None and not self._change.done():
            return
        members = {model: _workers_of(fleet, model) for model in self._models}
        seen = [_seen(fleet, model, workers) for model, workers in members.items()]
        model = self._planner.decide(seen, self._clock.now())
        others = [w for other, workers in members.items() if other != model for w in workers if not _sleeps(w)]
        own = [worker for worker in members.get(model, ()) if _can_wake(worker)]
        if model and (others or own or model != self._planner.resident):
            self._change = asyncio.create_task(self._give_to(model, others, members[model]), name="device turn")

    async def settled(self) -> None:
        """Wait for the end of what is under way."""
        if self._change is not None:
            await asyncio.wait([self._change])

    async def close(self) -> None:
        """Leave what is under way: workers finish it."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)

    async def _give_to(self, model: str, others: Sequence[FleetWorker], own: Sequence[FleetWorker]) -> None:
        began, is_new = self._clock.now(), model != self._planner.resident
        drain_s = self._config.drain_s
        is_done = await _all(self._calls.sleep(worker.ref.address, drain_s) for worker in others)
        slept_s = self._clock.now() - began
        if is_done:
            is_done = await _all(self._calls.wake(worker.ref.address) for worker in own if _can_wake(worker))
        if not is_new:
            return
        took_s = self._clock.now() - began
        self._metrics.turned("done" if is_done else "failed", took_s)
        if is_done:
            _log.info("a shared device went to model %s in %.1f s", model[:12], took_s)
            woken_s = took_s - slept_s  # of the rest most may be streams, which compute until they end
            self._planner.changed(model, self._clock.now(), woken_s + min(slept_s, woken_s))


async def _all(calls: Iterable[Awaitable[None]]) -> bool:
    """Whether all succeeded; they run side by side, and each to its end."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for error in results:
        if isinstance(error, StratosError):
            _log.warning("a shared device did not change: %s", error.message)
        elif isinstance(error, BaseException):
            raise error
    return not any(results)


def _workers_of(fleet: Fleet, model: str) -> list[FleetWorker]:
    """Workers that have said that they serve a model. One that does not answer may hold memory until it is gone."""
    return [w for w in fleet.workers if w.status is not None and w.status.identity.model_digest == model]


def _sleeps(worker: FleetWorker) -> bool:
    return worker.status is not None and worker.status.sleep_state is SleepState.ASLEEP


def _can_wake(worker: FleetWorker) -> bool:
    """It sleeps; a lost one, which may have slept, holds no turn up."""
    return _sleeps(worker) and worker.is_resting


def _seen(fleet: Fleet, model: str, workers: Sequence[FleetWorker]) -> SharerSeen:
    """Requests that none of its workers could take, because they are lost or not there yet, are worth no turn."""
    able = {worker.ref.role for worker in workers if worker.is_live or worker.is_resting}
    queues = [queue for queue in fleet.queues if queue.model_digest == model and queue.work.role in able]
    of_clients = [queue for queue in queues if queue.priority_class < BATCH_CLASS]
    num_waiting = sum(queue.num_requests for queue in queues)
    gateways = [load for load in fleet.gateways if load.model_digest == model]
    num_open = sum(load.num_open for load in gateways) if able else 0
    num_seqs = sum(worker.status.num_seqs for worker in workers if worker.status is not None)
    return SharerSeen(
        model=model,
        is_there=bool(workers),
        is_awake=any(not _sleeps(worker) for worker in workers),
        num_waiting=sum(queue.num_requests for queue in of_clients),
        oldest_s=max((queue.oldest_s for queue in of_clients), default=0.0),
        num_batch_waiting=num_waiting - sum(queue.num_requests for queue in of_clients),
        is_busy=bool(num_waiting or num_open or num_seqs),
        client_age_s=0.0 if of_clients else min((load.client_age_s for load in gateways), default=float("inf")),
    )
