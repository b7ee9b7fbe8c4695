"""Connections that send too much, too slowly, nothing, or no HTTP: each is bounded before any key is known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator

import pytest

from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.protocol import MAX_QUEUED
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world, say
from tests.support.worlds.raw_client import Client

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + KEY.encode() + b"\r\n"
BODY = json.dumps({"model": "base", "prompt": "x", "max_tokens": 2}).encode()
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
NO_KEY = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world(http={"head_timeout_s": 0.3, "max_body_bytes": 100_000}) as made:
        yield made


def check_refusal(answer: tuple[int, dict[str, str], dict[str, object]], status: int, code: str) -> None:
    got, headers, body = answer
    error = body["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert (got, error["code"]) == (status, code)
    assert headers["x-request-id"]


@pytest.mark.parametrize("piece", [b"a: " + b"x" * 1000 + b"\r\n", b"x" * 1000], ids=["many headers", "endless header"])
async def test_headers_without_end_are_cut_off(world: World, piece: bytes) -> None:
    async with Client(world) as client:
        client.writer.write(b"GET /livez HTTP/1.1\r\nb: ")
        assert await client.pour(piece, 50_000_000) < 10_000_000
    async with Client(world) as client:
        client.writer.write(b"GET /livez HTTP/1.1\r\nb: " + b"x" * 70_000)
        check_refusal(await client.answer(), 431, "headers_too_large")
        assert await client.is_ended()


async def test_a_connection_without_a_request_ends(world: World) -> None:
    async with Client(world) as client:
        assert await client.is_ended()


async def test_headers_that_dribble_in_are_not_waited_for(world: World) -> None:
    async with Client(world) as client:
        client.writer.write(NO_KEY)
        check_refusal(await client.answer(), 408, "request_timeout")
        assert await client.is_ended()


async def test_the_rest_of_a_refused_request_is_not_read_for_ever(world: World) -> None:
    async with Client(world) as client:
        client.writer.write(NO_KEY + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        check_refusal(await client.answer(), 401, "invalid_api_key")
        assert await client.is_ended()
    async with Client(world) as client:
        client.writer.write(NO_KEY + b"transfer-encoding: chunked\r\n\r\n0\r\n")
        check_refusal(await client.answer(), 401, "invalid_api_key")
        assert await client.pour(b"trailer: " + b"x" * 10_000 + b"\r\n", 100_000_000) < 20_000_000


async def test_requests_that_wait_for_no_answer_are_not_taken_without_end(world: World) -> None:
    async with Client(world) as client:
        reading = asyncio.create_task(client.is_ended())
        assert await client.pour(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 500, 2_000_000) < 1_000_000
        await reading
    async with Client(world) as client:
        client.writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * MAX_QUEUED)
        client.writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await client.reader.read()).count(b"HTTP/1.1 200 ") == MAX_QUEUED + 1


async def test_what_is_not_http_is_told_in_the_usual_shape(world: World) -> None:
    async with Client(world) as client:
        client.writer.write(b"\x16\x03\x01\x00\xff\x00\r\n\r\n")
        check_refusal(await client.answer(), 400, "invalid_http")
        assert await client.is_ended()


async def test_garbage_behind_a_request_does_not_disturb_its_answer(world: World) -> None:
    world.worker.script = say("the whole answer")
    world.worker.step_s = 0.02
    async with Client(world) as client:
        client.writer.write(REQUEST + b"\x00garbage\r\n\r\n")
        assert b"invalid" not in await client.reader.read()
    await eventually(lambda: world.metric("stratos_requests_open") == 0, "nothing is open")


async def test_kept_connections_and_slow_bodies_stay_within_their_time(world: World) -> None:
    world.worker.script = say("fine")
    async with Client(world) as client:
        for _ in range(3):
            client.writer.write(REQUEST)
            assert (await client.answer())[0] == 200
            await asyncio.sleep(0.4)  # longer than the head's time: an idle connection has uvicorn's own
        client.writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(BODY))
        await asyncio.sleep(0.4)
        client.writer.write(BODY)
        assert (await client.answer())[0] == 200
        client.writer.write(REQUEST * 3)
        assert [(await client.answer())[0] for _ in range(3)] == [200, 200, 200]


async def test_connections_beyond_the_limit_are_told_and_closed() -> None:
    async with gateway_world(http={"max_connections": 2}) as world, contextlib.AsyncExitStack() as stack:
        kept = [await stack.enter_async_context(Client(world)) for _ in range(2)]
        for client in kept:
            client.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            check_refusal(await client.answer(), 401, "invalid_api_key")
        async with Client(world) as third:
            third.writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await third.answer()
            check_refusal(answer, 503, "overloaded")
            assert 1 <= int(answer[1]["retry-after"]) <= 30
            assert await third.is_ended()
        for _ in range(2):
            await stack.enter_async_context(Client(world))
        async with Client(world) as fifth:
            assert await fifth.is_ended()
        assert world.metric("stratos_http_connections_refused_total") == 4
        kept[0].writer.write(REQUEST)
        assert (await kept[0].answer())[0] == 200


async def test_idle_connections_are_kept_for_the_time_that_is_set(promised: Promised) -> None:
    assert HttpLimits().keep_alive_s == 75
    async with gateway_world(http={"keep_alive_s": 1}) as world, Client(world) as client:
        for _ in range(2):
            asked_s = time.monotonic()
            client.writer.write(REQUEST)
            assert (await client.answer())[0] == 200
        with promised("an idle connection of 1 s is closed", 10.0):
            assert await client.is_ended()
        assert time.monotonic() - asked_s > 0.9, "it is kept"


def long_request(*, is_streamed: bool) -> bytes:
    """A request for an answer that no buffer on its way takes."""
    asked = {"model": "base", "prompt": "x", "n": 2, "max_tokens": 900, "logprobs": 5, "stream": is_streamed}
    body = json.dumps(asked).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("requests", "route", "status"),
    [
        (long_request(is_streamed=False), "/v1/completions", "200"),
        (long_request(is_streamed=True), "/v1/completions", "499"),
        (b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 9, "/openapi.json", "200"),
    ],
    ids=["whole", "stream", "many requests"],
)
async def test_an_answer_that_is_never_read_does_not_hold_its_connection(
    requests: bytes, route: str, status: str
) -> None:
    limits = {"write_timeout_s": 0.2, "keep_alive_s": 1, "head_timeout_s": 20.0}
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections' too, so little is on the way
    async with gateway_world(http=limits, http_listener_fd=listener.detach()) as world:
        world.worker.script = say("word " * 1000)
        address = world.service.http_address.split(":")
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, (address[0], int(address[1])))
            await asyncio.get_running_loop().sock_sendall(raw, requests)
            await eventually(lambda: world.metric("stratos_requests_total", route=route, status=status))
            await eventually(lambda: world.metric("stratos_http_connections") == 0, "it is dropped")
