"""Workers as processes of this machine: asks the supervisor of ``stratos up``."""

from __future__ import annotations

from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.common.errors import BadRequest
from stratos.core.placement import WorkerRole
from stratos.rpc.clients.channel import channel, translate_errors
from stratos.rpc.codec.fleet import role_from_pb, role_to_pb
from stratos_autoscaler.backends.base import Backend, BackendWorker

CALL_TIMEOUT_S = 5.0
STOPPED = "stopped"
DRAINING = "draining"


class LocalBackend(Backend):
    """A client of SupervisorService; a process' name is its worker's id.

    Args:
        address: host:port of the supervisor.
        start_timeout_s: longest wait for a new worker to serve.
    """

    def __init__(self, address: str, start_timeout_s: float) -> None:
        self._channel = channel(address)
        self._stub = supervisor_pb2_grpc.SupervisorServiceStub(self._channel)
        self._start_timeout_s = start_timeout_s

    async def workers(self) -> tuple[BackendWorker, ...]:
        """Worker processes that have not stopped."""
        async with translate_errors(peer="the supervisor"):
            answer = await self._stub.ListProcesses(supervisor_pb2.ListProcessesRequest(), timeout=CALL_TIMEOUT_S)
        workers = []
        for process in answer.processes:
            try:
                role = role_from_pb(process.role)
            except BadRequest:
                continue  # not a worker
            if process.state != STOPPED:
                workers.append(BackendWorker(worker_id=process.name, role=role, is_draining=process.state == DRAINING))
        return tuple(workers)

    async def start(self, role: WorkerRole) -> str:
        """Start a worker process."""
        request = supervisor_pb2.StartWorkerRequest(role=role_to_pb(role))
        async with translate_errors(peer="the supervisor"):
            answer = await self._stub.StartWorker(request, timeout=self._start_timeout_s)
        return str(answer.process.name)

    async def drain(self, worker_id: str) -> None:
        async with translate_errors(peer="the supervisor"):
            await self._stub.DrainWorker(supervisor_pb2.DrainWorkerRequest(name=worker_id), timeout=CALL_TIMEOUT_S)

    async def close(self) -> None:
        await self._channel.close()
