"""SupervisorService: the autoscaler's local backend asks it for workers. The one file here that speaks protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, cast

import grpc.aio

from stratos.api.common.v1 import common_pb2
from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.cli.local.lease import Lease
from stratos.cli.local.process import ProcessView, State
from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import BadRequest
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import ServiceSettings

_ROLES = {"prefill": common_pb2.WORKER_ROLE_PREFILL, "decode": common_pb2.WORKER_ROLE_DECODE}


class SupervisorSettings(ServiceSettings):
    """The supervisor has no settings of its own beyond the common ones."""

    env_prefix = "STRATOS_SUPERVISOR_"


class WorkerControl(Protocol):
    """Control of workers that the servicer needs from the platform."""

    def views(self) -> list[ProcessView]: ...

    async def start_worker(self, role: str) -> ProcessView:
        """Start one; returns when it serves."""
        ...

    async def begin_drain(self, name: str) -> None:
        """Let one leave."""
        ...


class SupervisorServicer(supervisor_pb2_grpc.SupervisorServiceServicer):
    """Translates between messages and ``WorkerControl``."""

    def __init__(self, control: WorkerControl, lease: Lease) -> None:
        self._control = control
        self._lease = lease

    async def HoldLease(self, request: Any, context: Any) -> supervisor_pb2.HoldLeaseResponse:
        return supervisor_pb2.HoldLeaseResponse(is_held=self._lease.hold(request.holder, request.ttl_ms / 1000))

    async def ListProcesses(self, request: Any, context: Any) -> supervisor_pb2.ListProcessesResponse:
        return supervisor_pb2.ListProcessesResponse(processes=[_message(view) for view in self._control.views()])

    async def StartWorker(self, request: Any, context: Any) -> supervisor_pb2.StartWorkerResponse:
        """Start one worker and return when it serves."""
        self._lease.check(request.holder)
        role = next((name for name, number in _ROLES.items() if number == request.role), None)
        if role is None:
            raise BadRequest("role must be prefill or decode", param="role")
        work = asyncio.create_task(self._control.start_worker(role), name=f"start-{role}")
        work.add_done_callback(_retrieve)
        # Shielded: a caller that gives up must not leave a half-started worker.
        return supervisor_pb2.StartWorkerResponse(process=_message(await asyncio.shield(work)))

    async def DrainWorker(self, request: Any, context: Any) -> supervisor_pb2.DrainWorkerResponse:
        if not request.by_operator:
            self._lease.check(request.holder)
        await self._control.begin_drain(request.name)
        return supervisor_pb2.DrainWorkerResponse()


class SupervisorService(Service):
    """The supervisor as a service inside the ``stratos up`` process."""

    name = "supervisor"

    def __init__(self, control: WorkerControl, clock: Clock | None = None) -> None:
        self._control = control
        self._lease = Lease(clock or SystemClock())
        self.is_listening = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        servicer = SupervisorServicer(self._control, self._lease)
        supervisor_pb2_grpc.add_SupervisorServiceServicer_to_server(servicer, server)
        return [supervisor_pb2.DESCRIPTOR.services_by_name["SupervisorService"].full_name]

    async def warm_up(self) -> None:
        """Wake the waiters: ``address`` is known."""
        self.is_listening.set()


def _retrieve(work: asyncio.Task[Any]) -> None:
    """Retrieve the outcome: once the caller is gone, no other code does."""
    if not work.cancelled():
        work.exception()


def _message(view: ProcessView) -> supervisor_pb2.Process:
    return supervisor_pb2.Process(
        name=view.name,
        pid=view.pid,
        address=view.address,
        state=view.state,
        role=_ROLES.get(view.role, common_pb2.WORKER_ROLE_UNSPECIFIED),
        num_restarts=view.num_restarts,
        metrics_address=view.metrics_address,
        model_digest=view.model_digest,
    )


def view_of(message: supervisor_pb2.Process) -> ProcessView:
    """The record of a message, for clients."""
    role = next((name for name, number in _ROLES.items() if number == message.role), "")
    return ProcessView(
        name=message.name,
        pid=message.pid,
        address=message.address,
        metrics_address=message.metrics_address,
        state=cast("State", message.state),
        role=role,
        num_restarts=message.num_restarts,
        model_digest=message.model_digest,
    )
