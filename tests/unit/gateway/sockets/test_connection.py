"""A connection's patience with a client that does not read, and what is left of it when it closes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stratos_gateway.http.sse import SlowClient
from stratos_gateway.sockets.connection import ConnectionBounds, SocketConnection
from tests.support.worlds.socket_client import CLOSE, PING, client_frame


class FakeTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written, self.ends = b"", list[str]()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ends)

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")


class FakeFlow:
    """Full, once it is told so."""

    def __init__(self) -> None:
        self.write_paused = False
        self.is_reading = True

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def connected(**bounds: Any) -> tuple[SocketConnection, FakeTransport, FakeFlow]:
    transport, flow = FakeTransport(), FakeFlow()
    given = ConnectionBounds(**{"max_bytes": 1000, "message_s": 30.0, "write_s": 0.01, **bounds})
    return SocketConnection(cast("asyncio.Transport", transport), flow, given), transport, flow


async def test_a_client_that_does_not_read_is_waited_for_so_long_and_left() -> None:
    connection, transport, flow = connected()
    await connection.send(b"one")
    flow.write_paused = True
    with pytest.raises(SlowClient):
        await connection.send(b"two")
    assert transport.ends == ["abort"]


async def test_pings_of_a_client_that_does_not_read_fill_no_buffer() -> None:
    connection, transport, flow = connected()
    connection.feed(client_frame(b"a", PING))
    assert transport.written == b"\x8a\x01a"
    flow.write_paused = True
    connection.feed(client_frame(b"a", PING) * 1000)
    assert transport.written == b"\x8a\x01a"


async def test_a_client_that_sends_faster_than_it_is_answered_is_not_read_from() -> None:
    connection, _, flow = connected()
    connection.feed(client_frame(b"1") + client_frame(b"2"))
    assert not flow.is_reading
    assert [await connection.next(), flow.is_reading, await connection.next()] == ["1", True, "2"]


async def test_a_close_is_answered_and_ends_the_connection() -> None:
    connection, transport, _ = connected()
    connection.feed(client_frame(b"\x03\xe8", CLOSE))
    assert (transport.written, transport.ends) == (b"\x88\x02\x03\xe8", ["close"])
    assert await connection.next() is None
    connection.lost()


async def test_after_a_close_of_ours_the_client_is_heard_to_its_own_close() -> None:
    connection, transport, _ = connected()
    connection.feed(client_frame(b"x" * 999, is_last=False))
    connection.close(1000, "bye")
    connection.feed(client_frame(b"x", 0) + client_frame(b"late"))
    assert (transport.ends, await connection.next()) == ([], None)
    connection.feed(client_frame(b"\x03\xe8", CLOSE))
    assert transport.ends == ["close"]
    connection.lost()
