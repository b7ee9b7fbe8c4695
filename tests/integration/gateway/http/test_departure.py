"""Clients that leave: their request ends at once, however its body came."""

from __future__ import annotations

import json

import pytest

from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import gateway_world, say
from tests.support.worlds.raw_client import Client, head


@pytest.mark.parametrize("num_blanks", [0, 100_000], ids=["small", "more than is read ahead"])
async def test_a_client_that_leaves_is_noticed_though_much_of_its_body_came_at_once(num_blanks: int) -> None:
    body = json.dumps({"model": "base", "prompt": "x", "max_tokens": 2000}).encode() + b" " * num_blanks
    async with gateway_world() as world:
        world.worker.script, world.worker.step_s = say("word " * 1000), 0.05
        async with Client(world) as client:
            client.writer.write(head(len(body)).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
            assert b" 100 " in await client.reader.readuntil(b"\r\n\r\n")  # the gateway waits for the body
            client.writer.write(body)
            await eventually(lambda: bool(world.worker.running), "the request runs")
        await eventually(lambda: bool(world.worker.cancels), "it is cancelled")
        await world.wait_idle()
