"""Envoy before two gateways that speak TLS: streams, signs of life, bodies, connections, a gateway that drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.servers.envoy import envoy
from tests.support.servers.plain_http import plain_client
from tests.support.servers.server_certificates import Authority
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import LIMIT_S, World, gateway_world, say

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]
STORY = "one two three four five six seven eight nine ten eleven twelve " * 4
ASK = {"model": "base", "prompt": "x", "max_tokens": 400, "stream": True}


@dataclass
class Edge:
    """Two gateways, and a client of the Envoy before them."""

    gateways: tuple[World, World]
    http: httpx.AsyncClient

    @property
    def running(self) -> World:
        """The gateway with the one open request."""
        (found,) = [gateway for gateway in self.gateways if gateway.metric("stratos_requests_open")]
        return found


@asynccontextmanager
async def edge(folder: Path, ca_path: Path | None = None) -> AsyncIterator[Edge]:
    authority = Authority(folder)
    authority.issue()
    tls = {"certificate_path": authority.certificate_path, "key_path": authority.key_path}
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(
                gateway_world(http_tls=tls, http={"sse_keepalive_s": 0.1}, drain_timeout_s=60.0, endpoint_lag_s=5.0)
            )
            for _ in range(2)
        ]
        addresses = [gateway.service.http_address for gateway in gateways]
        url = await stack.enter_async_context(envoy(folder, addresses, ca_path or authority.ca_path))
        headers = {"authorization": f"Bearer {KEY}"}
        http = await stack.enter_async_context(plain_client(url, headers=headers, timeout=LIMIT_S))
        yield Edge((gateways[0], gateways[1]), http)


async def is_served(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/v1/models")).status_code == 200
    except httpx.TransportError:  # it does not listen yet
        return False


async def test_streams_pass_as_they_come_with_signs_of_life(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        await eventually(lambda: is_served(found.http), "a gateway behind Envoy")
        for gateway in found.gateways:
            gateway.worker.script, gateway.worker.step_s = say(STORY), 0.3
        async with found.http.stream("POST", "/v1/completions", json=ASK) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            seen = [await anext(lines)]
            while not seen[-1].startswith("data:"):
                seen.append(await anext(lines))
            assert found.running.worker.running, "the first event is here before the last one is made"
            assert any(line.startswith(":") for line in seen), "comments before it"
            found.running.worker.step_s = 0.0
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"


async def test_bodies_meet_the_gateways_own_limit_and_connections_are_kept(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        await eventually(lambda: is_served(found.http), "a gateway behind Envoy")
        long = {"model": "base", "prompt": "x" * (2 * 1024 * 1024 - 100), "max_tokens": 1}
        answer = await found.http.post("/v1/completions", json=long)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        answer = await found.http.post("/v1/completions", json={**long, "prompt": "x" * (2 * 1024 * 1024)})
        assert answer.status_code == 413
        for _ in range(50):
            answer = await found.http.post("/v1/completions", json={**ASK, "stream": False})
            assert answer.status_code == 200
        connections = [gateway.metric("stratos_http_connections") for gateway in found.gateways]
        assert max(connections) <= 3, "one for requests, one for the checks, one that was closed after the 413"


async def test_a_gateway_that_drains_keeps_its_stream_and_gets_nothing_new(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        await eventually(lambda: is_served(found.http), "a gateway behind Envoy")
        for gateway in found.gateways:
            gateway.worker.script, gateway.worker.step_s = say(STORY), 0.05
        async with found.http.stream("POST", "/v1/completions", json=ASK) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            leaving = found.running
            (staying,) = [gateway for gateway in found.gateways if gateway is not leaving]
            staying.worker.step_s = 0.0
            leaving.stop.set()

            async def fails_elsewhere() -> bool:
                """Its readiness has been seen: four in a row go to the other one."""
                before = len(staying.worker.submits)
                for _ in range(4):
                    answer = await found.http.post("/v1/completions", json={**ASK, "stream": False})
                    assert answer.status_code == 200, answer.text
                return len(staying.worker.submits) == before + 4

            await eventually(fails_elsewhere, "all new requests at the gateway that stays")
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert await leaving.exit_code == 0
        for _ in range(8):
            assert (await found.http.post("/v1/completions", json={**ASK, "stream": False})).status_code == 200


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """The control of all the others: what passes there was checked."""
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    async with edge(tmp_path, Authority(stranger).ca_path) as found:

        async def answers() -> httpx.Response | None:
            try:
                return await found.http.get("/v1/models")
            except httpx.TransportError:
                return None

        await eventually(answers, "Envoy")
        answer = await asyncio.wait_for(found.http.get("/v1/models"), LIMIT_S)
        assert answer.status_code == 503
