"""Drain of a worker through the supervisor, and what the worker says at its end."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import grpc.aio

from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.process import ProcessView
from stratos.cli.local.running import TIMEOUT_S, list_processes
from stratos.cli.status import read_status
from stratos.common.errors import BadRequest, DependencyDown, NotFound, StratosError
from stratos.common.tls.identity import ANY_WORKER, PeerRole
from stratos.core.fleet import Fleet
from stratos.pki.local import dial_as
from stratos.rpc.clients.channel import translate_errors, wait_serving
from stratos.rpc.clients.dialer import Dialer

POLL_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainOutcome:
    """Result of a drain."""

    worker_id: str
    seconds: float
    has_left: bool
    """Its process has ended."""
    is_known: bool
    """It said what it moved; one that had to be killed does not."""
    num_handed_back: int = 0
    """Streams that went back to their gateways, to go on elsewhere."""
    num_offered: int = 0
    """Streams of these whose KV was there."""
    num_fetched: int = 0
    """Streams whose KV a successor has fetched."""
    num_fetched_tokens: int = 0


async def drain_worker(
    facts: PlatformFacts, worker_id: str, *, wait_s: float = 60.0, is_last_too: bool = False
) -> DrainOutcome:
    """Drain a worker and wait for its end.

    Args:
        facts: of the platform.
        worker_id: name of the worker, as ``stratos status`` shows it.
        wait_s: longest wait.
        is_last_too: also where no other decode worker could take its streams.

    Raises:
        NotFound: no worker of that name runs.
        BadRequest: it is the last one, and that was not asked for.
        DependencyDown: the supervisor does not answer.
    """
    status = await read_status(facts)
    process = _find(status.processes, worker_id)
    if process.role == "decode" and not is_last_too and not has_peer(status.fleet, worker_id):
        raise BadRequest(
            f"no other decode worker of its model is live, so the streams of {worker_id} would wait for one; "
            "--last drains it all the same"
        )
    dialer, began_s = dial_as(facts.tls_folder, PeerRole.SUPERVISOR), time.monotonic()
    async with dialer.channel(process.address, ANY_WORKER) as channel:
        await _connect(channel, worker_id)
        moved = asyncio.create_task(_moved(channel, process.name, wait_s))
        try:
            await _begin(dialer, facts.supervisor_address, worker_id)
            report = await moved
        finally:
            moved.cancel()
    has_left = await _has_left(facts, process, began_s + wait_s)
    counts = {} if report is None else {field.name: value for field, value in report.ListFields()}
    return DrainOutcome(
        worker_id=worker_id,
        seconds=round(time.monotonic() - began_s, 2),
        has_left=has_left,
        is_known=report is not None,
        **counts,
    )


def outcome_text(outcome: DrainOutcome) -> str:
    """Two lines: what was moved, and whether it has left."""
    name = outcome.worker_id
    if not outcome.is_known:
        moved = f"{name} ended, or did not answer, before it said what it moved: its streams are recovered"
    elif not outcome.num_handed_back:
        moved = f"{name} had no stream to hand back"
    else:
        moved = (
            f"{name} handed {outcome.num_handed_back} streams back, {outcome.num_offered} of them with their KV here; "
            f"{outcome.num_fetched} were fetched, {outcome.num_fetched_tokens:,} tokens"
        )
    left = "has left" if outcome.has_left else "has not left yet"
    return f"{moved}\n{name} {left} after {outcome.seconds:.1f} s"


def _find(processes: list[ProcessView], worker_id: str) -> ProcessView:
    workers = {process.name: process for process in processes if process.role}
    if worker_id not in workers:
        names = ", ".join(sorted(workers)) or "none"
        raise NotFound(f"there is no worker named {worker_id!r}; running: {names}")
    if workers[worker_id].state != "serving":
        raise BadRequest(f"{worker_id} is {workers[worker_id].state}: only a worker that serves can drain")
    return workers[worker_id]


def has_peer(fleet: Fleet | None, worker_id: str) -> bool:
    """Another decode worker of the same model is live and stays."""
    statuses = {worker.ref.worker_id: worker.status for worker in (fleet.workers if fleet else ()) if worker.is_live}
    own = statuses.pop(worker_id, None)
    return any(
        status is not None
        and status.ref.role.value == "decode"
        and not status.is_draining
        and (own is None or status.identity.model_digest == own.identity.model_digest)
        for status in statuses.values()
    )


async def _begin(dialer: Dialer, supervisor: str, worker_id: str) -> None:
    async with (
        dialer.channel(supervisor, PeerRole.SUPERVISOR) as peer,
        translate_errors(peer="the supervisor", lost=DependencyDown),
    ):
        request = supervisor_pb2.DrainWorkerRequest(name=worker_id, by_operator=True)
        await supervisor_pb2_grpc.SupervisorServiceStub(peer).DrainWorker(request, timeout=TIMEOUT_S)


async def _connect(channel: grpc.aio.Channel, name: str) -> None:
    """Wait for a connection, so that the next call is there before the drain begins."""
    try:
        await wait_serving(channel, timeout_s=TIMEOUT_S)
    except TimeoutError:
        raise DependencyDown(f"{name} does not answer; end its process to have its streams recovered") from None


async def _moved(channel: grpc.aio.Channel, name: str, wait_s: float) -> worker_pb2.WaitDrainedResponse | None:
    """Answer of the worker at its end; ``None`` when it cannot give it any more."""
    stub, request = worker_pb2_grpc.WorkerServiceStub(channel), worker_pb2.WaitDrainedRequest()
    try:
        async with translate_errors(peer=name):
            answer: worker_pb2.WaitDrainedResponse = await stub.WaitDrained(request, timeout=wait_s)
            return answer
    except StratosError:
        return None


async def _has_left(facts: PlatformFacts, process: ProcessView, until_s: float) -> bool:
    """Wait until its process is gone."""
    while True:
        if process.pid not in {other.pid for other in await list_processes(facts)}:
            return True
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(POLL_S)
