"""Requests over a real socket: bodies, keys, token times and counts, refusals by reason, and breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from stratos.cli.load.client.http_sender import HttpSender
from stratos.cli.load.client.target import Target
from stratos.cli.load.measured import TimedAnswer
from stratos.cli.load.workload.lengths import FixedLength
from stratos.cli.load.workload.senders import Sender, WeightedModel
from stratos.cli.load.workload.sessions import Workload, sessions
from stratos.common.errors import BadRequest
from tests.support.fakes.scripted_http import Asked, Reply, Script, ScriptedHttp, scripted_http

WORKLOAD = Workload(
    prompt=FixedLength(5), output=FixedLength(3), senders=(Sender(key="sk-1"),), models=(WeightedModel("m"),)
)
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}}


def token(text: str = "a", finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish}], "usage": None}


def events(*found: object) -> Script:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin_events()
        for event in found:
            await reply.event(event)

    return script


async def send(script: Script, **options: Any) -> tuple[TimedAnswer, ScriptedHttp]:
    async with scripted_http(script) as server:
        target = Target(base_url=f"{server.url}/v1", **options)
        async with HttpSender(target, asyncio.get_running_loop().time) as sender:
            session = next(sessions(WORKLOAD, None, "1"))
            return await sender.send(session, sender.prepare(session, session.turns[0])), server


async def test_a_completion_is_asked_with_token_ids_of_exact_length() -> None:
    answer, server = await send(events(token(), "[DONE]"), extra={"top_p": 0.5})
    body = server.asked[0].body
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].headers["authorization"] == "Bearer sk-1"
    assert (body["model"], body["max_tokens"], body["stream"], body["ignore_eos"], body["top_p"]) == (
        "m", 3, True, True, 0.5,
    )  # fmt: skip
    assert len(body["prompt"]) == 5
    assert answer.failure == ""


async def test_a_chat_is_asked_with_words_and_its_role_is_no_token() -> None:
    chunks: list[object] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "a"}, "finish_reason": None}]},
        {"choices": [{"delta": {"reasoning_content": "b"}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    ]
    answer, server = await send(events(*chunks), is_chat=True, ignores_eos=False)
    assert server.asked[0].path == "/v1/chat/completions"
    assert len(server.asked[0].body["messages"][0]["content"].split()) == 5
    assert "ignore_eos" not in server.asked[0].body
    assert len(answer.token_times_s) == 2
    assert answer.num_output_tokens is None


async def test_tokens_are_counted_by_the_server_where_it_counts() -> None:
    answer, _ = await send(events(token(), token(""), token("", "length"), USAGE, "[DONE]"))
    assert len(answer.token_times_s) == 2
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (7, 4)


async def test_an_event_has_the_time_at_which_it_came() -> None:
    """The server holds its second token back until the client has asked for the time of the first."""
    clock, has_first = [0.0], asyncio.Event()

    async def script(asked: Asked, reply: Reply) -> None:
        await reply.begin_events()
        await reply.event(token())
        await has_first.wait()
        clock[0] = 10.0
        await reply.event(token())
        await reply.event("[DONE]")

    num_asked = 0

    def now() -> float:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 2:  # the first is the time of sending
            has_first.set()
        return clock[0]

    async with scripted_http(script) as server, HttpSender(Target(base_url=f"{server.url}/v1"), now) as sender:
        session = next(sessions(WORKLOAD, None, "1"))
        answer = await sender.send(session, sender.prepare(session, session.turns[0]))
    assert list(answer.token_times_s) == [0.0, 10.0]


async def refuse(reply: Reply, head: str, body: bytes) -> None:
    await reply.write(f"HTTP/1.1 {head}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)


@pytest.mark.parametrize(
    ("head", "body", "failure"),
    [
        ("503 X\r\nx-stratos-shed-reason: queue_full", b'{"error": {"code": "other"}}', "503 queue_full"),
        ("429 X", b'{"error": {"code": "rate_limit", "message": "m"}}', "429 rate_limit"),
        ("400 X", b'{"error": {"message": "bad"}}', "400 bad"),
        ("502 X", b"<html>", "502"),
        ("500 X", b'["x"]', "500"),
    ],
)
async def test_a_refusal_has_its_status_and_reason(head: str, body: bytes, failure: str) -> None:
    answer, _ = await send(lambda asked, reply: refuse(reply, head, body))
    assert answer.failure == failure
    assert not answer.is_client_fault


@pytest.mark.parametrize(
    ("found", "failure"),
    [
        ((token(), {"error": {"code": "worker_lost", "message": "m"}}), "stream: worker_lost"),
        ((token(),), "stream: broke off"),
        (("[DONE]",), "stream: no output"),
        ((token(), 5, "[DONE]"), "stream: an event is not a JSON object"),
        ((token(), "{", "[DONE]"), "stream: an event is not a JSON object"),
    ],
)
async def test_a_stream_that_is_not_whole_is_a_failure(found: tuple[object, ...], failure: str) -> None:
    answer, _ = await send(events(*found))
    assert answer.failure == failure


async def test_a_connection_that_breaks_is_a_failure() -> None:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nda")

    answer, _ = await send(script)
    assert answer.failure == "connection: ConnectionResetError"


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    async with HttpSender(Target(base_url="http://127.0.0.1:1/v1"), asyncio.get_running_loop().time) as sender:
        answer = await sender.send(next(sessions(WORKLOAD, None, "1")), b"{}")
    assert answer.failure == "connection: ConnectionRefusedError"


async def test_many_streams_are_open_at_once() -> None:
    """All 40 requests must have come before the first is answered: a client that holds any back hangs."""
    num_came, all_came = 0, asyncio.Event()

    async def script(asked: Asked, reply: Reply) -> None:
        nonlocal num_came
        num_came += 1
        if num_came == 40:
            all_came.set()
        await all_came.wait()
        await reply.begin_events()
        await reply.event(token())
        await reply.event("[DONE]")

    async with scripted_http(script) as server:
        target = Target(base_url=f"{server.url}/v1")
        async with HttpSender(target, asyncio.get_running_loop().time) as sender:
            session = next(sessions(WORKLOAD, None, "1"))
            body = sender.prepare(session, session.turns[0])
            sends: list[Awaitable[TimedAnswer]] = [sender.send(session, body) for _ in range(40)]
            answers = await asyncio.gather(*sends)
    assert {answer.failure for answer in answers} == {""}


async def test_connections_are_kept_and_one_that_was_closed_while_idle_is_replaced() -> None:
    """The server keeps its first connection for two requests and closes it then, as servers do with idle ones."""
    num_connections, is_closed = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            stream = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(stream), stream))
        writer.close()
        await writer.wait_closed()
        is_closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, HttpSender(Target(base_url=url), asyncio.get_running_loop().time) as sender:
        session = next(sessions(WORKLOAD, None, "1"))
        failures = [(await sender.send(session, b"{}")).failure for _ in range(2)]
        await is_closed.wait()
        failures += [(await sender.send(session, b"{}")).failure for _ in range(2)]
    assert failures == [""] * 4
    assert num_connections == 2


async def test_bytes_that_are_no_http_are_a_failure() -> None:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.write(b"SSH-2.0-x\r\n\r\n")

    answer, _ = await send(script)
    assert answer.failure.startswith("connection: HttpParser")


async def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    async def script(asked: Asked, reply: Reply) -> None:
        await asyncio.Event().wait()

    answer, _ = await send(script, timeout_s=0.01)
    assert answer.failure == "connection: TimeoutError"


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(BadRequest, match="characters that no key has"):
        Sender(key="a\r\nx: y")
