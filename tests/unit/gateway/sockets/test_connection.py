"""A connection's patience with a client that does not read, and what is left of it when it closes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from stratos.common.errors import Draining, Overloaded, StratosError
from stratos.common.shed_reason import ShedReason
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD
from stratos.core.tenant import Tenant
from stratos_gateway.access.body_places import BodyPlaces
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


async def test_a_message_on_its_way_has_a_place_among_the_bodies() -> None:
    places = BodyPlaces(1, 1, lambda number: None)
    connection, transport, _ = connected(partial(places.hold, Tenant(name="t", plan=STANDARD)))
    frame = client_frame(b"one")
    connection.feed(frame)
    assert len(places) == 0, "it was there at once"
    connection.feed(frame[:3])
    assert len(places) == 1
    connection.feed(frame[3:] + frame[:3])
    assert len(places) == 1, "the next one has it"
    other, refused, _ = connected(partial(places.hold, Tenant(name="t", plan=STANDARD)))
    other.feed(frame[:3])
    assert (refused.written[:1], struct.unpack("!H", refused.written[2:4])) == (b"\x88", (1013,))
    connection.feed(frame[3:])
    assert len(places) == 0
    connection.feed(frame[:3])
    connection.lost()
    assert (len(places), transport.written) == (0, b"")
    other.lost()


@pytest.mark.parametrize(
    ("error", "code"), [(Overloaded("displaced", reason=ShedReason.LOAD_SHED), 1013), (Draining("it leaves"), 1012)]
)
async def test_a_message_that_loses_its_place_closes_its_socket(error: StratosError, code: int) -> None:
    places = BodyPlaces(1, 1, lambda number: None)
    connection, transport, _ = connected(partial(places.hold, Tenant(name="low", plan=BATCH)))
    connection.feed(client_frame(b"one")[:3])
    if code == 1013:
        with places.enter(Tenant(name="high", plan=PREMIUM)):
            assert len(places) == 1
    else:
        places.end_all(error)
    assert (transport.written[:1], struct.unpack("!H", transport.written[2:4])) == (b"\x88", (code,))
    assert (len(places), await connection.next()) == (0, None)
    connection.lost()


async def test_a_message_without_a_place_waits_while_a_response_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = list[Callable[[], None]]()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda delay_s, call: timers.append(call) or Mock())
    places = BodyPlaces(1, 1, lambda number: None)
    tenant, frame = Tenant(name="t", plan=STANDARD), client_frame(b"one")
    connection, transport, flow = connected(partial(places.hold, tenant))
    connection.is_answering = True
    with places.enter(tenant):
        connection.feed(frame[:3])
        assert (transport.written, flow.is_reading) == (b"", False)
        await connection.send(b"event")
        assert transport.written, "the response goes on"
        assert not connection.is_gone
    timers[-1]()
    assert (len(places), flow.is_reading) == (1, True)
    connection.feed(frame[3:])
    assert (len(places), await connection.next()) == (0, "one")
    connection.lost()


async def test_pings_that_come_together_get_one_answer_and_none_behind_a_close() -> None:
    connection, transport, _ = connected()
    connection.feed(client_frame(b"a", PING) + client_frame(b"b", PING))
    assert transport.written == b"\x8a\x01b"
    connection.close(1000)
    written = transport.written
    connection.feed(client_frame(b"c", PING))
    assert transport.written == written
    connection.lost()
