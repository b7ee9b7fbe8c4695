"""Processes of one machine as workers of a pool: spares are none, neither as they wait nor as they load."""

from __future__ import annotations

from stratos.api.common.v1 import common_pb2
from stratos.api.supervisor.v1 import supervisor_pb2
from stratos_autoscaler.backends.local import LocalBackend

STATES = ("starting", "loading", "serving", "standby", "draining", "stopped")


class Supervisor:
    """Answers with one decode worker in each state."""

    async def ListProcesses(self, request: object, timeout: float) -> supervisor_pb2.ListProcessesResponse:
        role = common_pb2.WORKER_ROLE_DECODE
        processes = [supervisor_pb2.Process(name=state, state=state, role=role) for state in STATES]
        return supervisor_pb2.ListProcessesResponse(processes=processes)


async def test_spares_are_no_workers_of_a_pool() -> None:
    backend = LocalBackend("127.0.0.1:1", start_timeout_s=1, lease_ttl_s=1)
    backend.__dict__["_stub"] = Supervisor()
    workers = await backend.workers()
    assert [worker.worker_id for worker in workers] == ["starting", "serving", "draining"]
