"""Pairs that end while their rings are made, over every KV transport."""

import asyncio
import contextlib

import pytest

from stratos.common.errors import WorkerLost
from tests.support.kv.kv_transfer_world import World
from tests.support.kv.segment_memory import SEGMENTS


@pytest.fixture(params=["inproc", "shm", "gloo", "tls", "ordered-gloo", SEGMENTS])
async def world(request, tmp_path):
    (tmp_path / "staging").mkdir(mode=0o700, exist_ok=True)
    made = World(request.param, tmp_path / "staging")
    yield made
    await made.close()


async def test_a_pair_that_ends_while_it_is_opened_leaves_nothing(world):
    opening = asyncio.create_task(world.port.open_ring(world.transport, "inc-p>inc-d#1"))
    await asyncio.sleep(0)
    world.port.end_ring("inc-p>inc-d#1")
    with contextlib.suppress(WorkerLost):  # it may be open by then
        await opening
    link = await world.link()
    assert bytes(await link.transfer(0, link.slots[0], b"the next one")) == b"the next one"
