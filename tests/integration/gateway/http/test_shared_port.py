"""Gateways that share one listening socket: what one that leaves does with connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from stratos.rpc.binding import StartError
from stratos_gateway.http import server
from stratos_gateway.http.listener import inherit_listener
from tests.integration.gateway.http.test_leaving import Kept
from tests.support.servers.plain_http import plain_client
from tests.support.waiting import LIMIT_S, eventually
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


async def test_a_gateway_that_leaves_refuses_and_breaks_no_request_of_its_connections(
    port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: it ended them at once, or answered 503; no connection is idle for as long as it waits here."""
    monkeypatch.setattr(server, "MIN_IDLE_S", LIMIT_S)
    fds = [os.dup(port.fileno()) for _ in range(2)]
    async with (
        gateway_world(http_listener_fd=fds[0], drain_timeout_s=LIMIT_S) as leaving,
        gateway_world(http_listener_fd=fds[1]),
    ):
        found, is_over = Counter[int | str](), asyncio.Event()

        async def ask_on_and_on(pause_s: float) -> None:
            async with plain_client(str(leaving.http.base_url), headers=leaving.http.headers, timeout=LIMIT_S) as http:
                while not is_over.is_set():
                    found[(await http.post("/v1/completions", json={**ASK, "max_tokens": 1})).status_code] += 1
                    await asyncio.sleep(pause_s)

        asking = [asyncio.create_task(ask_on_and_on(number % 4 * 0.05)) for number in range(16)]
        await eventually(lambda: found.total() > 64, "both gateways answer")
        async with AsyncExitStack() as stack:
            fresh = [await stack.enter_async_context(Kept(leaving)) for _ in range(8)]
            await eventually(lambda: leaving.metric("stratos_http_connections") > 4, "it has some of them")
            leaving.stop.set()
            await eventually(lambda: leaving.service.not_ready_reason(), "it leaves")
            one = json.dumps({**ASK, "max_tokens": 1})
            asked = await asyncio.gather(*(connection.ask("POST", "/v1/completions", one) for connection in fresh))
            found.update(status for status, _ in asked)
            await eventually(lambda: leaving.metric("stratos_http_connections") == 0, "it has none")
        is_over.set()
        await asyncio.gather(*asking)
        assert set(found) == {200}, found


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
