"""Sessions over an application of the test: responses that break off, that are nearly over, and that are left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from stratos.common.clock import FakeClock
from stratos_gateway.responses.local import LocalResponse
from stratos_gateway.sockets.connection import SocketConnection
from stratos_gateway.sockets.session import SocketSession
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.sockets.turns import SocketTurn
from tests.support.worlds.fake_socket import FakeTransport, connected
from tests.support.worlds.socket_client import client_frame

CREATE = client_frame(json.dumps({"type": "response.create"}).encode())
START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
LAST = b'event: response.completed\ndata: {"type": "response.completed"}\n\n'


@asynccontextmanager
async def session(app: ASGIApp) -> AsyncIterator[tuple[SocketConnection, FakeTransport, asyncio.Task[None]]]:
    connection, transport, _ = connected()
    scope: dict[str, Any] = {"headers": []}

    def turn(number: int) -> SocketTurn:
        return SocketTurn(app, scope, f"r-{number}", connection, LocalResponse(1000))

    run = asyncio.create_task(SocketSession(connection, turn, SocketsConfig(), FakeClock()).run())
    try:
        async with asyncio.timeout(10):
            yield connection, transport, run
    finally:
        connection.lost()
        await asyncio.wait([run], timeout=10)


async def test_a_response_without_a_last_event_ends_its_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        raise RuntimeError

    async with session(app) as (connection, transport, run):
        connection.feed(CREATE)
        await run
        assert b"\x03\xf3the response broke off" in transport.written


async def test_the_next_request_may_come_right_after_the_last_event() -> None:
    gate, is_said = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": LAST, "more_body": True})
        is_said.set()
        await gate.wait()
        await send({"type": "http.response.body", "body": b""})

    async with session(app) as (connection, transport, _):
        connection.feed(CREATE)
        await is_said.wait()
        is_said.clear()
        connection.feed(CREATE)
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
        await is_said.wait()
        assert transport.written.count(b"response.completed") == 2
        assert b"response_in_progress" not in transport.written


async def test_a_client_that_leaves_while_the_gateway_goes_is_not_answered_further() -> None:
    is_begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        is_begun.set()
        assert (await receive())["type"] == "http.disconnect"

    async with session(app) as (connection, _, run):
        connection.feed(CREATE)
        await is_begun.wait()
        connection.leave()
        for _ in range(10):
            await asyncio.sleep(0)
        connection.lost()
        await run
