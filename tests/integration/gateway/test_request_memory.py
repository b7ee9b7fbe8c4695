"""Memory of a request that has ended: it is free at once, and not when the collector of cycles comes by."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.generation.generation import Generation
from stratos_gateway.http.sse import EventStream
from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import gateway_world, say

PARTS = {ClientRequest, PreparedGeneration, Generation, EventStream}


def parts() -> dict[int, object]:
    """What requests leave, by address; what an earlier test of this process still holds is among it."""
    return {id(found): found for found in gc.get_objects() if type(found) in PARTS}


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_request_is_left_to_the_collector_of_cycles(stream: bool) -> None:
    """A hundred objects of each request would be, with its prompt and its answer, and passes would find them late."""
    async with gateway_world() as world:
        world.worker.script = say("some text")
        gc.collect()
        gc.disable()
        before = parts()
        try:
            for _ in range(3):
                answer: Any = await world.openai.completions.create(model="base", prompt="x", n=2, stream=stream)
                if stream:
                    assert [chunk async for chunk in answer]
            await eventually(lambda: parts().keys() <= before.keys())
        finally:
            gc.enable()
