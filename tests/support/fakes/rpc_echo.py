"""A small real service for tests of stratos.rpc: it borrows two existing protos, and does what a test hands in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.rpc.serving.process import serve_async
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import ServiceSettings

REGISTRY = "stratos.api.lora.v1.RegistryService"


class EchoSettings(ServiceSettings):
    env_prefix = "STRATOS_ECHO_"

    redis_url: str = ""
    pepper: SecretStr = SecretStr("")


class EchoService(Service, registry_pb2_grpc.RegistryServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
    """``on_list`` answers unary calls, ``on_watch`` streams; ``events`` records the lifecycle."""

    name = "echo"

    def __init__(self) -> None:
        self.events: list[str] = []
        self.on_list: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self.on_watch: Callable[[], AsyncIterator[int]] | None = None
        self.root_tasks: dict[str, Coroutine[Any, Any, Any]] = {}
        self.reason = ""
        self.open_error: Exception | None = None
        self.serving = asyncio.Event()
        self.drain_event: asyncio.Event | None = None

    def register(self, server: Any) -> Sequence[str]:
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(self, server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, server)
        return [REGISTRY]

    async def ListAdapters(self, request: Any, context: Any) -> Any:
        if self.on_list is not None:
            await self.on_list(request.tenant)
        return registry_pb2.ListAdaptersResponse()

    async def WatchStatus(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.WorkerStatus]:
        assert self.on_watch is not None
        async for step in self.on_watch():
            yield worker_pb2.WorkerStatus(engine_step=step)

    async def open(self) -> None:
        self.events.append("open")
        if self.open_error is not None:
            raise self.open_error

    async def warm_up(self) -> None:
        self.events.append(f"warm_up {bool(self.address)}")

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        return {"serving flag": self._flag_serving(), **self.root_tasks}

    def not_ready_reason(self) -> str:
        return self.reason

    async def drain(self) -> None:
        self.events.append("drain")
        if self.drain_event is not None:
            await self.drain_event.wait()

    async def close(self) -> None:
        self.events.append("close")

    async def _flag_serving(self) -> None:
        self.serving.set()
        await asyncio.Event().wait()


@dataclass
class Running:
    service: EchoService
    stop: asyncio.Event
    task: asyncio.Task[int] = field(repr=False)


@asynccontextmanager
async def running(service: EchoService, **settings: Any) -> AsyncIterator[Running]:
    """Serve until the block ends; the block may end the service itself."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve_async(service, EchoSettings(**settings), stop=stop))
    serving = asyncio.create_task(service.serving.wait())
    await asyncio.wait({task, serving}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    try:
        yield Running(service, stop, task)
    finally:
        stop.set()
        await task
