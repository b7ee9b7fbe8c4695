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


def narrow_gate() -> LineGate:
    """One line at a time."""
    return LineGate(1, FakeClock(), GatewayMetrics(CollectorRegistry()))


async def begun_in_order(gate: LineGate, keys: list[bytes]) -> list[bytes]:
    """Keys of lines as they get their places."""
    begun: list[bytes] = []

    async def line(key: bytes) -> None:
        async with gate.place(key):
            begun.append(key)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(line(key))
    return begun


async def test_lines_of_several_slices_go_by_their_keys_and_in_turn_without_them() -> None:
    first, *rest = await begun_in_order(narrow_gate(), [b"b1", b"c1", b"a1", b"b2", b"c2", b"a2"])
    assert first == b"b1", "it found the place free"
    assert rest == [b"b2", b"c1", b"c2", b"a1", b"a2"]
    assert await begun_in_order(narrow_gate(), [b""] * 4) == [b""] * 4


async def test_lines_that_keep_coming_hold_up_none() -> None:
    """Each that runs brings another one of its own key."""
    gate, come = narrow_gate(), list[str]()

    async def line(key: bytes, name: str) -> None:
        async with gate.place(key):
            come.append(name)
            if name.startswith("k") and len(come) < 20:
                group.create_task(line(key, f"k{len(come)}"))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(line(b"k", "k"))
        group.create_task(line(b"z", "z"))
        group.create_task(line(b"a", "a"))
    assert come.index("z") <= 2
    assert come.index("a") <= 3


async def test_a_line_that_is_given_up_leaves_no_place_taken() -> None:
    gate, begun = narrow_gate(), list[bytes]()

    async def line(key: bytes) -> None:
        async with gate.place(key):
            begun.append(key)
            await asyncio.sleep(3600 if key == b"stays" else 0)

    stays = asyncio.create_task(line(b"stays"))
    await asyncio.sleep(0)
    waits, next_one = asyncio.create_task(line(b"waits")), asyncio.create_task(line(b"x"))
    await asyncio.sleep(0)
    waits.cancel()
    stays.cancel()
    await asyncio.gather(waits, stays, return_exceptions=True)
    await next_one
    taken, after = asyncio.create_task(line(b"taken")), asyncio.create_task(line(b"y"))
    taken.cancel()
    await asyncio.gather(taken, return_exceptions=True)
    await after
    assert begun == [b"stays", b"x", b"y"]


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


async def test_keys_that_rise_with_each_line_hold_up_none() -> None:
    """A tenant can sort its file by keys, so that each line comes just before those of others."""
    gate, come = narrow_gate(), list[str]()

    async def line(key: bytes, name: str) -> None:
        async with gate.place(key):
            come.append(name)
            if name == "k" and len(come) < 2000:
                group.create_task(line(b"k%08d" % len(come), "k"))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(line(b"k", "k"))
        group.create_task(line(b"z", "z"))
        group.create_task(line(b"a", "a"))
    assert come.index("z") < 600
    assert come.index("a") < 1200
