"""Finds a running platform through its data directory, for ``chat``, ``status``, ``keys`` and ``adapters``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from stratos.api.supervisor.v1 import supervisor_pb2, supervisor_pb2_grpc
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.cli.local.process import ProcessView
from stratos.cli.local.servicer import view_of
from stratos.common.errors import DependencyDown, NotFound
from stratos.common.tls.identity import PeerRole
from stratos.pki.local import dial_as
from stratos.rpc.clients.channel import translate_errors

TIMEOUT_S = 10.0


def find_platform(data_dir: Path, run_id: str = "") -> PlatformFacts:
    """The newest platform that runs from this data directory, or the one named ``run_id``.

    Raises:
        NotFound: none runs, or none of that name.
    """
    runs = list(DataDir(data_dir).living_runs())
    for content in runs:
        if run_id in ("", content["run_id"]):
            return PlatformFacts.from_json(dict(content))
    if not runs:
        raise NotFound(f"no platform runs from {data_dir.absolute()}; start one with `stratos up` or give --data-dir")
    raise NotFound(f"no run {run_id!r} in {data_dir.absolute()}; running: {_names(c['run_id'] for c in runs)}")


async def list_processes(facts: PlatformFacts) -> list[ProcessView]:
    """Every process of a running platform."""
    dialer = dial_as(facts.tls_folder, PeerRole.SUPERVISOR)
    async with (
        dialer.channel(facts.supervisor_address, PeerRole.SUPERVISOR) as peer,
        translate_errors(peer="the supervisor", lost=DependencyDown),
    ):
        stub = supervisor_pb2_grpc.SupervisorServiceStub(peer)
        # Its process lives: a handshake that a busy machine was too slow for is tried again.
        request = supervisor_pb2.ListProcessesRequest()
        answer = await stub.ListProcesses(request, timeout=TIMEOUT_S, wait_for_ready=True)
    return [view_of(process) for process in answer.processes]


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
