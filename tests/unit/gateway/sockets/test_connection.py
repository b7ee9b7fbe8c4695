"""A connection's patience with a client that does not read, and what is left of it when it closes."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from stratos_gateway.http.sse import SlowClient
from tests.support.worlds.fake_socket import connected
from tests.support.worlds.socket_client import CLOSE, PING, client_frame


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


async def test_every_message_has_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = list[tuple[float, Mock]]()

    def call_later(delay_s: float, *_: Any) -> Mock:
        timers.append((delay_s, Mock()))
        return timers[-1][1]

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    connection, *_ = connected()
    first, second = client_frame(b"first"), client_frame(b"second")
    connection.feed(first[:3])
    connection.feed(first[3:] + second[:3])
    assert [(delay_s, timer.cancel.called) for delay_s, timer in timers] == [(30.0, True), (30.0, False)]
    connection.feed(second[3:])
    assert timers[-1][1].cancel.called
