"""Gateways that share one listening socket: what one that leaves does with connections."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from stratos.rpc.binding import StartError
from stratos_gateway.http.listener import inherit_listener
from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import World, gateway_world, say

STORY = "one two three four five six seven eight nine ten eleven twelve " * 4
ASK = {"model": "base", "prompt": "x", "max_tokens": 400}


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def read_stream(world: World) -> str:
    return "".join([chunk.choices[0].text async for chunk in await world.openai.completions.create(**ASK, stream=True)])


async def test_a_draining_gateway_ends_its_streams_and_leaves_what_is_new_to_another(port: socket.socket) -> None:
    async with gateway_world(http_listener_fd=os.dup(port.fileno()), drain_timeout_s=20) as leaving:
        leaving.worker.script, leaving.worker.step_s = say(STORY), 0.2
        stream = asyncio.create_task(read_stream(leaving))
        await eventually(lambda: leaving.placed, "a stream at the gateway that leaves")
        assert (await leaving.http.get("/v1/models")).status_code == 200  # its connection is kept, and idle now
        async with gateway_world(http_listener_fd=os.dup(port.fileno())) as staying:
            assert staying.service.http_address == leaving.service.http_address
            leaving.stop.set()
            await eventually(lambda: leaving.metric("stratos_http_connections") == 1, "the idle connection is closed")
            answers = [await leaving.http.post("/v1/completions", json=ASK) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200] * 4
            assert (leaving.placed, staying.placed) == (1, 4)
            assert not stream.done()
            leaving.worker.step_s = 0.0
            assert await stream == STORY


async def test_a_burst_of_connections_is_shared_by_the_gateways(port: socket.socket) -> None:
    """They wait in the socket's queue as both begin to look: the first to wake leaves the second its half."""
    fds = [os.dup(port.fileno()) for _ in range(2)]
    async with gateway_world(http_listener_fd=fds[0]) as one, gateway_world(http_listener_fd=fds[1]) as other:
        address = port.getsockname()
        async with AsyncExitStack() as stack:
            for _ in range(24):
                client = stack.enter_context(socket.socket())
                client.connect(address)  # the loop does not turn in between

            def held() -> list[float]:
                return [world.metric("stratos_http_connections") for world in (one, other)]

            await eventually(lambda: sum(held()) == 24, "all are taken")
            assert min(held()) >= 8, held()


def test_what_is_no_listening_socket_is_refused(port: socket.socket) -> None:
    with socket.socket() as plain:
        for fd, reason in ((os.dup(plain.fileno()), "does not listen"), (10_000, "no socket")):
            with pytest.raises(StartError, match=reason):
                inherit_listener(fd, "HTTP_LISTENER_FD")
    listener = inherit_listener(os.dup(port.fileno()), "HTTP_LISTENER_FD")
    assert listener.is_shared
    assert listener.address == f"127.0.0.1:{port.getsockname()[1]}"
    assert not listener.socket.get_inheritable()
    listener.socket.close()
