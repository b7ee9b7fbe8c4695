"""Our cycle sends what uvicorn's does, in fewer writes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest.mock import Mock

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stratos_gateway.http.cycle import AnswerCycle, read_target

JSON = (b"Content-Type", b"application/json")
CLOSE = (b"connection", b"keep-alive, Close")
Message = dict[str, Any]


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def cycle_of(kind: type[RequestResponseCycle], method: str, *, keep_alive: bool = True) -> RequestResponseCycle:
    return kind(
        scope={"type": "http", "method": method},  # type: ignore[typeddict-item]
        transport=Mock(), flow=Mock(write_paused=False), logger=Mock(logging.Logger), access_logger=Mock(),
        access_log=False, default_headers=[(b"date", b"today")], message_event=asyncio.Event(),
        expect_100_continue=False, keep_alive=keep_alive, on_response=Mock(),
    )  # fmt: skip


def writes(cycle: RequestResponseCycle) -> list[bytes]:
    transport: Any = cycle.transport
    return [call.args[0] for call in transport.write.call_args_list if call.args[0]]


async def played(kind: type[RequestResponseCycle], method: str, messages: list[Message], *, keep_alive: bool) -> Any:
    """What a connection sees of an application that sends these messages and returns."""
    cycle = cycle_of(kind, method, keep_alive=keep_alive)
    transport, on_response = cycle.transport, cycle.on_response

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(dict(message))

    await cycle.run_asgi(app)
    return b"".join(writes(cycle)), transport.close.called, on_response.called, cycle.keep_alive  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
@pytest.mark.parametrize(
    "messages",
    [
        [start(JSON, (b"content-length", b"4")), body(b"{} \n")],
        [start(JSON, (b"content-length", b"4")), body(b"{}", more=True), body(b"\n\n")],
        [start(JSON), body(b"one", more=True), body(b"", more=True), body(b"two", more=True), body(b"")],
        [start(JSON), body(b"one")],
        [start(JSON, CLOSE), body(b"one")],
        [start((b"transfer-encoding", b"Chunked")), body(b"one")],
        [start((b"x-content-length-of", b"7")), body(b"one")],
        [start(status=204), body(b"")],
        [start(JSON, (b"content-length", b"4")), body(b"too long")],
        [start(JSON, (b"content-length", b"4")), body(b"no")],
        [start((b"bad name", b"x")), body(b"one")],
        [start((b"name", b"bad\nvalue")), body(b"one")],
        [start(JSON), start(JSON)],
        [start(JSON), body(b"one"), body(b"two")],
        [start(JSON), body(b"one", more=True)],
        [start(JSON)],
        [body(b"one")],
        [],
    ],
)
async def test_a_client_gets_what_uvicorn_sends(messages: list[Message], method: str, *, keep_alive: bool) -> None:
    theirs = await played(RequestResponseCycle, method, messages, keep_alive=keep_alive)
    assert await played(AnswerCycle, method, messages, keep_alive=keep_alive) == theirs


async def test_the_head_of_an_answer_leaves_with_its_body() -> None:
    cycle = cycle_of(AnswerCycle, "POST")
    await cycle.send(start(JSON))  # type: ignore[arg-type]
    assert not writes(cycle)
    await cycle.send(body(b"one"))  # type: ignore[arg-type]
    assert len(writes(cycle)) == 1


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    cycle, read = cycle_of(AnswerCycle, "POST"), asyncio.Event()
    cycle.flow = Mock(write_paused=True, drain=read.wait)
    sending = asyncio.create_task(cycle.send(start(JSON)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not cycle.response_started
    read.set()
    await sending
    assert cycle.response_started


@pytest.mark.parametrize(
    ("target", "read"),
    [
        (b"/v1/chat", ("/v1/chat", b"/v1/chat", b"")),
        (b"/a%20b?x=1&y", ("/a b", b"/a%20b", b"x=1&y")),
        (b"/" + b"a" * 500, ("/" + "a" * 500, b"/" + b"a" * 500, b"")),
    ],
)
def test_targets_are_read(target: bytes, read: tuple[str, bytes, bytes]) -> None:
    assert read_target(target) == read_target(target) == read
