"""Groups that pair frames by order, over Gloo with one tag: numbers, gaps, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.common.errors import WorkerLost
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.registry import find_faults, usable_transports, working_transports
from stratos.kv_transfer.settings import TransportConfig
from stratos.kv_transfer.transfer import FrameHeader
from tests.support.kv.kv_transfer_world import LONG_S, Link, World, header_of, payload_of
from tests.support.promises import Promised


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "staging").mkdir(mode=0o700)
    made = World("ordered-gloo", tmp_path / "staging", gloo_timeout_s=2.0)
    yield made
    await made.close()


async def announce_and_send(link: Link, seq: int, payload: bytes, headers: list[FrameHeader]) -> None:
    with link.sender.announcing(header_of(link.leg, seq, link.slots[seq], payload)) as announced:
        headers.append(announced)
        await link.sender.send(announced, payload)


async def test_headers_in_another_order_get_the_payloads_of_their_numbers(world: World) -> None:
    link = await world.link(want=4)
    payloads = [payload_of(seq, 5000 + seq) for seq in range(2)]
    headers: list[FrameHeader] = []
    sending = [asyncio.create_task(announce_and_send(link, seq, payloads[seq], headers)) for seq in range(2)]
    await asyncio.sleep(0)
    assert [header.pair_seq for header in headers] == [0, 1]
    for header in reversed(headers):
        world.receiver.announce_frame(link.name, header)
    await asyncio.gather(*sending)
    assert [bytes(await link.wait(seq)) for seq in range(2)] == payloads


async def test_a_number_that_comes_twice_breaks_the_protocol(world: World) -> None:
    link = await world.link(want=4)
    header = header_of(link.leg, 0, link.slots[0], b"x")
    world.receiver.announce_frame(link.name, header)
    waiting = asyncio.create_task(link.wait(0))
    await asyncio.sleep(0)
    world.receiver.announce_frame(link.name, replace(header, seq=1, slot=link.slots[1]))
    with pytest.raises(WorkerLost, match="number of another one"):
        await waiting
    assert world.receiver.ledger() == StagingLedger()


async def test_a_header_that_never_comes_ends_the_pair_in_bounded_time(world: World) -> None:
    link = await world.link(want=4)
    payload = payload_of(0, 100)
    world.receiver.announce_frame(link.name, header_of(link.leg, 0, link.slots[0], payload, pair_seq=1))
    with pytest.raises(WorkerLost, match="sent without its header"):
        await link.wait(0, timeout_s=LONG_S)
    assert world.receiver.ledger() == StagingLedger()
    fresh = await world.link(leg="leg-2")
    assert bytes(await fresh.transfer(0, fresh.slots[0], payload)) == payload


async def test_a_frame_that_is_announced_and_not_sent_ends_the_pair_at_once(world: World) -> None:
    link = await world.link(want=4)
    header = header_of(link.leg, 0, link.slots[0], b"x")
    with pytest.raises(RuntimeError, match="the stream broke"), link.sender.announcing(header):
        raise RuntimeError("the stream broke")
    with pytest.raises(WorkerLost, match="has ended"), link.sender.announcing(replace(header, seq=1)):
        pass


async def test_a_frame_that_cannot_be_sent_ends_the_pair_at_once(world: World, promised: Promised) -> None:
    link = await world.link(want=4)
    payload = payload_of(0, 100)
    for slot, error in ((99, ValueError), (link.slots[0], WorkerLost)):  # a receiver gave a credit that it has not
        header = header_of(link.leg, 0, slot, payload)
        with (
            promised("a frame that cannot be sent waits for no number that will not come", 1.0),
            pytest.raises(error),
            link.sender.announcing(header) as announced,
        ):
            await link.sender.send(announced, payload)


def test_without_a_gpu_nccl_is_refused_by_name() -> None:
    both = TransportConfig(names=("nccl", "shm"))
    faults = find_faults(both)
    assert "nccl needs a GPU" in faults["nccl"]
    assert working_transports(usable_transports(both, has_tls=False), faults) == ("shm",)
    with pytest.raises(ValueError, match="nccl needs a GPU"):
        working_transports(("nccl",), faults)
