"""All simulated workers of a process as one ``Service``.

Each worker is a ``WorkerProcess`` with a gRPC server, metrics and a status of its own; what a process has once, signals
and probes, they share.  One whose task ends is a fault of the process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from stratos.common.background import BackgroundTasks
from stratos.common.clock import SystemClock
from stratos.core.placement import WorkerRef
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.rpc.binding import join_address, split_address
from stratos.rpc.serving.address_file import replace_text
from stratos.rpc.serving.server import GrpcServer
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import env_name_of
from stratos.worker.adapter_cache import open_adapter_store
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.factory import transports_of
from stratos.worker.service import WorkerProcess
from stratos.worker.settings import WorkerSettings
from stratos.worker.simulated.engine import SimulatedEngine
from stratos.worker.simulated.settings import SimWorkerSettings

_log = logging.getLogger(__name__)


class SimulatedFleet(Service):
    """The workers of one process."""

    name = "sim-worker"

    def __init__(self, settings: SimWorkerSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._workers: dict[str, WorkerProcess] = {}
        self._servers: dict[str, GrpcServer] = {}
        self._leaving = BackgroundTasks()
        self._registration = Registration(settings.discovery_folder, settings.worker_id)

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """The process itself answers health alone; every worker has a server of its own."""
        return ()

    async def open(self) -> None:
        """Read the model folder once, then open and serve every worker."""
        settings = self._settings
        config = (await asyncio.to_thread(FakeRunner.load, settings.fake)).config
        # What one worker may read and hash, each would read and hash again.
        plain = settings.model_copy(update={"fake": dataclasses.replace(config, step_s=0.0, token_s=0.0)})
        for index in range(settings.count):
            await self._open_worker(plain, f"{settings.worker_id}-{index}")

    async def _open_worker(self, settings: SimWorkerSettings, name: str) -> None:
        cache = dataclasses.replace(settings.adapter_cache, directory=settings.adapter_cache.directory / name)
        own = settings.model_copy(update={"worker_id": name, "adapter_cache": cache})
        worker = WorkerProcess(
            settings.role, own, make_engine=partial(self._make_engine, settings.fake), make_store=open_adapter_store
        )
        worker.request_stop = partial(self._begin_leave, name)
        worker.dialer = self.dialer
        server = GrpcServer(worker)
        await worker.open()
        self._workers[name], self._servers[name] = worker, server
        host = split_address(settings.listen)[0]
        port = await server.listen(join_address(host, 0), env_name_of(type(settings), ("listen",)))
        worker.address = join_address(settings.advertise_host or host, port)

    def _make_engine(self, config: FakeConfig, settings: WorkerSettings) -> EngineClient:
        return SimulatedEngine(
            config,
            self._settings.costs,
            settings.scheduler,
            self._clock,
            lambda geometry: transports_of(settings, geometry, device=""),
        )

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Root tasks of all workers."""
        return {f"{name}: {task}": work for name, w in self._workers.items() for task, work in w.tasks().items()}

    async def warm_up(self) -> None:
        """Every worker does its first step; then routers find all of them."""
        await asyncio.gather(*(worker.warm_up() for worker in self._workers.values()))
        for server in self._servers.values():
            await server.set_serving(True)
        self._publish()
        _log.info("%d simulated workers serve", len(self._workers))

    def not_ready_reason(self) -> str:
        """The first worker that is not."""
        found = ((name, worker.not_ready_reason()) for name, worker in list(self._workers.items()))
        return next((f"{name}: {reason}" for name, reason in found if reason), "")

    async def drain(self) -> None:
        """All workers leave at once."""
        await asyncio.gather(*(worker.drain() for worker in self._workers.values()))

    async def close(self) -> None:
        self._registration.remove()
        await self._leaving.close()
        await asyncio.gather(*(server.stop(0.0) for server in self._servers.values()))
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))

    def _publish(self) -> None:
        self._registration.publish(worker.me() for worker in self._workers.values())

    def _begin_leave(self, name: str) -> None:
        """A worker drains; the others stay."""
        self._leaving.spawn(self._leave(name), name=f"drain {name}")

    async def _leave(self, name: str) -> None:
        await self._workers[name].drain()
        await self._servers[name].stop(self._settings.stop_grace_s)
        left = {known: worker for known, worker in self._workers.items() if known != name}
        self._registration.publish(worker.me() for worker in left.values())


class Registration:
    """A file in the folder of the routers' discovery, with the workers of this process; removed at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"

    def publish(self, workers: Iterable[WorkerRef]) -> None:
        """These are the workers now."""
        entries = [{"worker_id": ref.worker_id, "address": ref.address, "role": ref.role.value} for ref in workers]
        replace_text(self._path, json.dumps(entries))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
