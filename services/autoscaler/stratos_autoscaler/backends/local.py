"""Workers as processes of this machine: calls the supervisor of ``stratos up``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import grpc.aio

from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.common.errors import BadRequest
from stratos.common.ids import new_incarnation
from stratos.planning.settings import PoolKey
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import PLAIN, Dialer, PeerRole
from stratos.rpc.codec.fleet import ROLE
from stratos_autoscaler.backends.base import Backend, BackendWorker

CALL_TIMEOUT_S = 5.0
STOPPED = "stopped"
DRAINING = "draining"
STARTING = "starting"
SPARE = "standby", "loading"
"""States of a spare, which is no part of a pool while it loads either."""


class LocalBackend(Backend):
    """A client of SupervisorService; a process' name is its worker's id.

    Args:
        address: host:port of the supervisor.
        start_timeout_s: longest wait for a new worker to serve.
        lease_ttl_s: duration of the lease.
        dialer: connects; called at the first call.
    """

    def __init__(
        self, address: str, start_timeout_s: float, lease_ttl_s: float, dialer: Callable[[], Dialer] = lambda: PLAIN
    ) -> None:
        self._address = address
        self._lease_ttl_s = lease_ttl_s
        self._dialer = dialer
        self._start_timeout_s = start_timeout_s
        self._holder = new_incarnation()

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        return self._dialer().channel(self._address, PeerRole.SUPERVISOR)

    @cached_property
    def _stub(self) -> supervisor_pb2_grpc.SupervisorServiceStub:
        return supervisor_pb2_grpc.SupervisorServiceStub(self._channel)

    async def hold_lease(self) -> bool:
        request = supervisor_pb2.HoldLeaseRequest(holder=self._holder, ttl_ms=round(self._lease_ttl_s * 1000))
        async with translate_errors(peer="the supervisor"):
            answer = await self._stub.HoldLease(request, timeout=CALL_TIMEOUT_S)
        return bool(answer.is_held)

    async def workers(self) -> tuple[BackendWorker, ...]:
        """Worker processes that have not stopped, without spares."""
        async with translate_errors(peer="the supervisor"):
            answer = await self._stub.ListProcesses(supervisor_pb2.ListProcessesRequest(), timeout=CALL_TIMEOUT_S)
        workers = []
        for process in answer.processes:
            try:
                role = ROLE.from_pb(process.role)
            except BadRequest:
                continue  # not a worker
            if process.state not in (STOPPED, *SPARE):
                workers.append(
                    BackendWorker(
                        worker_id=process.name,
                        role=role,
                        model_digest=process.model_digest,
                        is_draining=process.state == DRAINING,
                        is_starting=process.state == STARTING,
                    )
                )
        return tuple(workers)

    async def start(self, pool: PoolKey) -> str:
        """Start a worker process; a platform of one machine has one model."""
        request = supervisor_pb2.StartWorkerRequest(role=ROLE.to_pb(pool.role), holder=self._holder)
        async with translate_errors(peer="the supervisor"):
            answer = await self._stub.StartWorker(request, timeout=self._start_timeout_s)
        return str(answer.process.name)

    async def drain(self, worker_id: str) -> None:
        request = supervisor_pb2.DrainWorkerRequest(name=worker_id, holder=self._holder)
        async with translate_errors(peer="the supervisor"):
            await self._stub.DrainWorker(request, timeout=CALL_TIMEOUT_S)

    async def close(self) -> None:
        await self._channel.close()
