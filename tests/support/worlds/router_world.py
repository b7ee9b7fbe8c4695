"""A fleet of fake workers around a real router process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.clock import SystemClock
from stratos.core.features import Feature
from stratos.core.fleet import Fleet, FleetWorker, WorkerStatus
from stratos.core.kv import KvIdentity
from stratos.core.placement import AttemptReport, Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.rpc.clients.name_lookup import Resolve
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.rpc.serving.process import serve_async
from stratos_router.service import RouterApp
from stratos_router.settings import RouterSettings
from tests.support.servers import warm_process
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.fleet_samples import make_load, with_free_slots
from tests.support.worlds.terms import make_terms, with_terms

MODEL = "ab" * 32
IDENTITY = KvIdentity(model_digest=MODEL, kv_dtype="float32", rope_variant="default:10000.0", numerics_id="cpu")
STEP_S = 0.02
SEATS_BY_BOOKINGS = {"bookings__flight_s": "600", "bookings__confirm_s": "600"}
"""Of a router: its placements take the seats of fake workers, whose statuses show none of them."""


def make_status(worker_id: str, role: WorkerRole, **changes: Any) -> WorkerStatus:
    """An idle worker with 1000 blocks and 8 batch slots."""
    ref = WorkerRef(worker_id=worker_id, incarnation=f"inc-{worker_id}", address="", role=role)
    engine = make_load(num_free_adapter_slots=8)
    status = WorkerStatus(ref=ref, engine=engine, identity=IDENTITY, max_num_seqs=8, features=frozenset(Feature))
    return with_free_slots(status, changes)


def ask(request_id: str = "req-1", **changes: Any) -> PlacementRequest:
    request = PlacementRequest(
        request_id=request_id,
        terms=make_terms(tenant="a"),
        model_digest=MODEL,
        num_prompt_tokens=64,
        max_output_tokens_total=32,
    )
    return with_terms(request, **changes)


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Sends ``status``, at once when it changes and every interval."""

    def __init__(self, status: WorkerStatus) -> None:
        self.status = status
        self.address = ""
        self.num_streams = 0
        self.num_drains = 0
        self._changed = asyncio.Event()
        self._server = grpc.aio.server()

    @property
    def worker_id(self) -> str:
        return self.status.ref.worker_id

    def set(self, **changes: Any) -> None:
        self.status = with_free_slots(self.status, changes)
        self._changed.set()
        self._changed = asyncio.Event()

    async def WatchStatus(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.num_streams += 1
        while True:
            changed = self._changed
            yield WORKER_STATUS.to_pb(self.status)
            try:
                async with asyncio.timeout(request.interval_ms / 1000):
                    await changed.wait()
            except TimeoutError:
                pass

    async def Drain(self, request: Any, context: Any) -> Any:
        self.num_drains += 1
        return worker_pb2.DrainResponse()

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        self.address = f"{host}:{self._server.add_insecure_port(f'{host}:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


@asynccontextmanager
async def fake_workers(*statuses: WorkerStatus) -> AsyncIterator[list[FakeWorker]]:
    workers = [FakeWorker(status) for status in statuses]
    for worker in workers:
        await worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


def write_discovery(path: Path, *entries: Mapping[str, str]) -> None:
    """Replace the discovery file atomically, as the supervisor does."""
    staged = path.with_suffix(".tmp")
    staged.write_text(json.dumps(list(entries)))
    staged.replace(path)


def entry(worker: FakeWorker) -> dict[str, str]:
    return {"worker_id": worker.worker_id, "address": worker.address, "role": worker.status.ref.role.value}


@asynccontextmanager
async def service_process(
    module: str, tmp_path: Path, settings: Mapping[str, str], *, expect_code: int = 0
) -> AsyncIterator[dict[str, Any]]:
    """A real service process; yields what its address file holds, ends it with SIGTERM and checks its exit code."""
    prefix = f"{module.upper()}_"
    address_file = tmp_path / f"{module}.json"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("STRATOS_")}
    environ |= {prefix + key.upper(): value for key, value in settings.items()}
    environ[f"{prefix}ADDRESS_FILE"] = str(address_file)
    process = await asyncio.to_thread(warm_process.begin, module, env=environ, files=warm_process.INHERITED)
    try:
        await eventually(lambda: address_file.exists() or process.poll() is not None, f"{module} listens")
        assert process.returncode is None, f"{module} ended with {process.returncode}"
        yield json.loads(address_file.read_text())
        process.send_signal(signal.SIGTERM)
        assert await process.ended() == expect_code
    finally:
        await asyncio.to_thread(process.end)


def finished(placement: Placement, *, num_output_tokens: int | None = None) -> AttemptReport:
    """What a gateway reports of an attempt that went well."""
    return AttemptReport(handoff_id=placement.handoff_id, outcome=Outcome.FINISHED, num_output_tokens=num_output_tokens)


@asynccontextmanager
async def router_in_task(settings: RouterSettings, resolve: Resolve) -> AsyncIterator[RouterClient]:
    """A real router in this process, with a name service of the test's own."""
    app, stop = RouterApp(settings, SystemClock(), Random(1), resolve), asyncio.Event()
    exit_code = asyncio.create_task(serve_async(app, settings, stop=stop))
    await eventually(lambda: app.address or exit_code.done(), "the router listens")
    try:
        async with RouterClient(app.address) as client:
            yield client
    finally:
        stop.set()
        assert await exit_code == 0


@asynccontextmanager
async def router_process(tmp_path: Path, discovery: str, **settings: str) -> AsyncIterator[RouterClient]:
    async with (
        service_process("stratos_router", tmp_path, {"discovery": discovery, **settings}) as found,
        RouterClient(found["address"]) as client,
    ):
        yield client


async def fleet_of(client: RouterClient) -> Fleet:
    """What the router sees now; a busy machine may take its time to tell."""
    return await client.fleet(timeout_s=LIMIT_S)


def by_id(fleet: Fleet) -> dict[str, FleetWorker]:
    return {worker.ref.worker_id: worker for worker in fleet.workers}


async def until_live(client: RouterClient, *worker_ids: str) -> None:
    """Wait until exactly these workers are live."""

    async def are_live() -> bool:
        fleet = await fleet_of(client)
        return {worker.ref.worker_id for worker in fleet.workers if worker.is_live} == set(worker_ids)

    await eventually(are_live)


def start_worker_process(worker_id: str, role: WorkerRole, port: int = 0) -> tuple[warm_process.WarmProcess, str]:
    """A fake worker as a process of its own; returns it and its address."""
    reads, writes = os.pipe()
    with os.fdopen(reads) as words, os.fdopen(writes), Path(os.devnull).open() as nothing:
        files = (nothing.fileno(), writes, 2)
        process = warm_process.begin("tests.support.worlds.router_world", worker_id, role.value, str(port), files=files)
        return process, words.readline().strip()


async def _main(worker_id: str, role: str, port: int) -> None:
    status = make_status(worker_id, WorkerRole(role), is_computing=True)
    ref = dataclasses.replace(status.ref, incarnation=f"inc-{worker_id}-{os.getpid()}")
    worker = FakeWorker(dataclasses.replace(status, ref=ref))
    await worker.start(port)
    print(worker.address, flush=True)
    while True:
        worker.set(step=worker.status.engine.step + 1)
        await asyncio.sleep(STEP_S)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
