"""A gateway that leaves: its connections, and streams that the drain's time is too short for."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

ASK = {"model": "base", "prompt": "x", "max_tokens": 3000}


def endless(world: World) -> None:
    world.worker.script = lambda submit, choice: shipped_tokenizer().encode_plain("word ")[:1] * 4000
    world.worker.step_s = 0.01


class Kept:
    """A connection that its client keeps."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def __aenter__(self) -> Kept:
        host, port = self._world.service.http_address.split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def get(self, path: str) -> tuple[int, dict[str, str]]:
        return await self.ask("GET", path)

    async def ask(self, method: str, path: str, body: str = "") -> tuple[int, dict[str, str]]:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.writer.write((head + body).encode())
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers

    async def is_ended(self) -> bool:
        return await self.reader.read() == b""


async def test_from_not_ready_on_connections_end_with_their_answers_and_idle_ones_at_once() -> None:
    async with gateway_world(endpoint_lag_s=30.0) as world, Kept(world) as idle, Kept(world) as fresh:
        assert (await idle.get("/v1/models"))[1].get("connection") != "close"
        world.worker.script, world.worker.step_s = say("word " * 100), 0.01
        running = asyncio.create_task(world.http.post("/v1/completions", json={**ASK, "max_tokens": 100}))
        await eventually(lambda: world.placed, "a request is open")
        world.stop.set()
        assert await idle.is_ended()
        async with Kept(world) as late:
            for connection in (fresh, late):  # one that was open without a request, and one that comes now
                status, headers = await connection.get("/v1/models")
                assert (status, headers["connection"]) == (200, "close")  # the lag: load balancers do not know yet
                assert await connection.is_ended()
        answer = await running
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        async with Kept(world) as probe:
            assert (await probe.get("/readyz"))[0] == 503
        world.force.set()


async def test_a_client_that_sends_one_request_after_the_other_sees_no_connection_broken() -> None:
    async with gateway_world(endpoint_lag_s=30.0) as world:
        world.worker.script = say("word")
        answers: list[httpx.Response] = []

        async def ask_on_and_on() -> None:
            ends = False
            while not ends:
                answers.append(await world.http.post("/v1/completions", json={**ASK, "max_tokens": 1}))
                ends = answers[-1].headers.get("connection") == "close"

        asking = [asyncio.create_task(ask_on_and_on()) for _ in range(8)]
        await eventually(lambda: len(answers) > 20)
        world.stop.set()
        await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {200}
        world.force.set()


async def test_streams_that_the_drain_cannot_wait_for_end_with_an_error_event() -> None:
    async with gateway_world(drain_timeout_s=0.4) as world:
        endless(world)
        plain = asyncio.create_task(world.http.post("/v1/completions", json=ASK))
        streams = [asyncio.create_task(read_events(world)) for _ in range(3)]
        await eventually(lambda: world.placed == 4, "all are open")
        world.stop.set()
        for stream in streams:
            events = await stream
            error = json.loads(events[-1])["error"]
            assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, "draining")
            assert "[DONE]" not in events
        answer = await plain
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"]
        assert world.metric("stratos_requests_ended_by_drain_total") == 4


@pytest.mark.parametrize("when", ["lag", "drain"])
async def test_a_forced_stop_tells_its_streams_too(when: str) -> None:
    async with gateway_world(endpoint_lag_s=30.0 if when == "lag" else 0.0, drain_timeout_s=60.0) as world:
        endless(world)
        stream = asyncio.create_task(read_events(world))
        await eventually(lambda: world.placed, "it is open")
        world.stop.set()
        await eventually(lambda: world.service.not_ready_reason(), "leaving")
        world.force.set()
        events = await stream
        assert json.loads(events[-1])["error"]["code"] == "draining"


async def read_events(world: World) -> list[str]:
    """All events of a stream; httpx raises if it is cut instead of ended."""
    events = []
    async with world.http.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line:
                events.append(line.removeprefix("data: "))
    return events
