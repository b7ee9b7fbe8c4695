"""Sources that are asked whether they may still write: one that was cut off is not gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from stratos.common.clock import FakeClock
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.worker.handoff.source_peers import SourcePeers


class Slots:
    """Of all transports."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def end_incarnation(self, source_incarnation: str) -> None:
        self.ended.append(source_incarnation)

    def freed(self) -> None: ...


async def test_slots_of_a_source_are_kept_until_its_port_refuses() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    slots = Slots()
    peers = SourcePeers(cast("Any", slots), cast("Any", slots), FakeClock())
    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    peers.suspect(WorkerRef(worker_id="w", incarnation="i", address=address, role=WorkerRole.PREFILL))
    await peers.probe()
    assert (peers.num_suspects, slots.ended) == (1, []), "its connection was cut, and it may still write"
    server.close()
    await server.wait_closed()
    await peers.probe()
    assert (peers.num_suspects, slots.ended) == (0, ["i"])
    await peers.close()
