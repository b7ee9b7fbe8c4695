"""Sources that are asked whether they may still write: one that was cut off is not gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from stratos.common.clock import FakeClock
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.worker.handoff.source_peers import SILENT_S, SourcePeers


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


async def test_slots_of_lost_machines_are_dropped_in_the_end_and_they_are_asked_side_by_side(monkeypatch: Any) -> None:
    slots, clock = Slots(), FakeClock()
    peers, together = SourcePeers(cast("Any", slots), cast("Any", slots), clock), asyncio.Barrier(2)

    async def say_nothing(ref: WorkerRef) -> None:
        async with asyncio.timeout(5):
            await together.wait()

    monkeypatch.setattr(peers, "_ask_incarnation", say_nothing)
    for name in ("a", "b"):
        peers.suspect(WorkerRef(worker_id="w", incarnation=name, address="lost:1", role=WorkerRole.PREFILL))
    peers.leg_opened("b")
    clock.advance(SILENT_S - 1)
    await peers.probe()
    assert (peers.num_suspects, slots.ended) == (2, []), "a stopped process refuses nothing either, and may go on"
    clock.advance(1)
    await peers.probe()
    assert (peers.num_suspects, slots.ended) == (1, ["a"]), "a hand-off of the other one is open"
    await peers.close()
