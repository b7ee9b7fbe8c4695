"""How many lines run at a time, as the platform answers or refuses."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.metrics import GatewayMetrics


async def test_it_opens_while_lines_are_answered_and_closes_when_they_are_refused() -> None:
    clock = FakeClock()
    gate = LineGate(16, clock, GatewayMetrics(CollectorRegistry()))
    assert gate.limit == 4
    for _ in range(300):
        gate.note_answer()
    assert gate.limit == 16
    for _ in range(5):
        gate.note_refusal()
    assert gate.limit == 8, "refusals of one moment count once"
    for _ in range(10):
        clock.advance(2.0)
        gate.note_refusal()
    assert gate.limit == 1, "one goes on asking"


async def test_lines_wait_for_their_places() -> None:
    gate, running = LineGate(2, FakeClock(), GatewayMetrics(CollectorRegistry())), list[int]()

    async def line() -> None:
        async with gate.place():
            running.append(len(running))
            await asyncio.sleep(0)
            assert len(running) <= 2
            running.pop()

    await asyncio.gather(*(line() for _ in range(20)))
    assert running == []
