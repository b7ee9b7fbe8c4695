"""The edge: bad input, limits, clients that leave or do not read, health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratos.common.errors import BadRequest, ContextLengthExceeded, Overloaded, QueueTimeout, StratosError
from tests.support.promises import Promised
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

BODY = {"model": "base", "prompt": "x"}


def endless() -> list[int]:
    return [shipped_tokenizer().encode_plain("word ")[0]] * 4000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


def check_error(response: Any, status: int, code: str, param: str | None = None) -> None:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["message"]
    assert response.headers["x-request-id"]


async def test_every_kind_of_bad_request_has_its_answer(world: World) -> None:
    http, url = world.http, "/v1/completions"
    check_error(await http.get("/nothing"), 404, "unknown_route")
    check_error(await http.get(url), 405, "method_not_allowed")
    check_error(await http.post(url, json=BODY, headers={"authorization": ""}), 401, "invalid_api_key")
    check_error(await http.post(url, json=BODY, headers={"authorization": "Bearer sk-no"}), 401, "invalid_api_key")
    check_error(await http.post(url, content=b"{"), 400, "invalid_json")
    check_error(await http.post(url, content=b"[]"), 400, "invalid_json")
    check_error(await http.post(url, content=b'{"model": NaN}'), 400, "invalid_json")
    check_error(await http.post(url, content=b"{" * 1000), 400, "invalid_json")
    check_error(await http.post(url, content=b"{" * 100_000), 400, "too_many_values")
    check_error(
        await http.post(url, content=b"{}", headers={"content-type": "text/plain"}), 400, "unsupported_content_type"
    )
    check_error(await http.post(url, json={**BODY, "model": "gpt-9"}), 404, "model_not_found", "model")
    check_error(await http.post(url, json={**BODY, "temprature": 1}), 400, "unknown_parameter", "temprature")
    check_error(await http.post(url, json={**BODY, "prompt": ""}), 400, "invalid_request", "prompt")
    check_error(await http.post(url, json={**BODY, "prompt": [5000]}), 400, "invalid_request", "prompt")
    long = await http.post(url, json={**BODY, "prompt": "word " * 5000})
    check_error(long, 400, "context_length_exceeded", "prompt")
    check_error(await http.get("/v1/models/nothing"), 404, "model_not_found", "model")
    assert world.worker.submits == []


async def test_bodies_over_the_limit_with_and_without_a_length() -> None:
    async with gateway_world(http={"max_body_bytes": 1000}) as world:
        big = json.dumps({**BODY, "prompt": "x" * 5000}).encode()
        announced = await world.http.post("/v1/completions", content=big, headers={"content-type": "application/json"})
        check_error(announced, 413, "request_too_large")

        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, len(big), 500):
                yield big[begin : begin + 500]

        headers = {"content-type": "application/json"}
        check_error(
            await world.http.post("/v1/completions", content=parts(), headers=headers), 413, "request_too_large"
        )


async def test_request_ids_are_echoed_when_sane(world: World) -> None:
    sane = await world.http.get("/v1/models", headers={"x-request-id": "client-1.2:3"})
    assert sane.headers["x-request-id"] == "client-1.2:3"
    odd = await world.http.get("/v1/models", headers={"x-request-id": "a b" * 100})
    assert odd.headers["x-request-id"].startswith("req-")
    await world.http.post("/v1/completions", json=BODY, headers={"x-request-id": "mine"})
    assert world.worker.submits[0].request_id != "mine"


async def test_caps_of_gateway_and_tenant() -> None:
    async with gateway_world(requests={"max_open": 3, "max_open_per_tenant": 2}) as world:
        world.worker.script = lambda submit, choice: endless()
        world.worker.step_s = 0.01
        endless = {**BODY, "max_tokens": 3000}
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        running = [asyncio.create_task(world.http.post("/v1/completions", json=endless)) for _ in range(2)]
        await eventually(lambda: len(world.worker.submits) == 2, "two run")
        full_tenant = await world.http.post("/v1/completions", json=BODY)
        check_error(full_tenant, 429, "concurrency_limit")
        assert full_tenant.headers["retry-after"]
        running.append(asyncio.create_task(world.http.post("/v1/completions", json=endless, headers=other)))
        await eventually(lambda: len(world.worker.submits) == 3, "three run")
        full = await world.http.post("/v1/completions", json=BODY, headers=other)
        check_error(full, 503, "overloaded")
        assert 1 <= int(full.headers["retry-after"]) <= 30
        assert full.headers["x-stratos-shed-reason"] == "queue_full"
        assert world.metric("stratos_requests_shed_total", reason="queue_full") == 1
        for task in running:
            task.cancel()
        await world.wait_idle()
        world.worker.script = say("free again")
        assert (await world.http.post("/v1/completions", json=BODY)).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_cancelled_at_the_worker_soon(
    world: World, promised: Promised, stream: bool
) -> None:
    world.worker.script = lambda submit, choice: endless()
    world.worker.step_s = 0.005
    body = json.dumps({**BODY, "max_tokens": 3000, "stream": stream}).encode()
    reader, writer = await raw_post(world, body)
    await eventually(lambda: world.worker.submits, "it runs")
    if stream:
        await reader.readuntil(b"data: ")
    with promised("the request of a client that leaves ends at the worker", 0.2):
        writer.close()
        await eventually(lambda: world.worker.cancels, "cancelled")
    assert not world.worker.cancels[0].choice_indexes
    await world.wait_idle()
    assert world.metric("stratos_requests_total", route="/v1/completions", status="499") == 1


async def test_a_client_that_leaves_in_the_queue_is_forgotten(world: World) -> None:
    world.router.workers = []
    _, writer = await raw_post(world, json.dumps(BODY).encode())
    await eventually(lambda: world.router.requests, "it waits for a placement")
    writer.close()
    await eventually(lambda: world.metric("stratos_requests_open") == 0, "nothing is open")
    assert world.worker.submits == []


async def test_slow_readers_cost_nobody_else_anything() -> None:
    async with gateway_world(http={"write_timeout_s": 1.0}) as world:
        world.worker.script = lambda submit, choice: endless()
        body = json.dumps({**BODY, "max_tokens": 3000, "stream": True, "n": 8}).encode()
        slow = [await raw_post(world, body) for _ in range(4)]
        await eventually(lambda: len(world.worker.submits) == 4, "the slow ones run")
        answer = await world.http.post("/v1/completions", json={**BODY, "max_tokens": 50})
        assert answer.json()["usage"]["completion_tokens"] == 50
        for _, writer in slow:
            writer.close()
        await eventually(lambda: world.metric("stratos_requests_open") == 0, "nothing is open")


async def raw_post(world: World, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = world.service.http_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**12)
    head = ["POST /v1/completions HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", f"content-length: {len(body)}"]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await writer.drain()
    return reader, writer


async def test_health_is_a_real_inference_and_is_cached(world: World) -> None:
    for _ in range(3):
        response = await world.http.get("/health", headers={"authorization": ""})
        assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert len(world.worker.submits) == 1
    assert world.worker.submits[0].sampling.max_tokens == 1


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [(Overloaded("full"), 200, "full"), (QueueTimeout("nobody there"), 503, "broken")],
)
async def test_full_is_not_broken(world: World, error: StratosError, status: int, state: str) -> None:
    world.router.errors = [error]
    response = await world.http.get("/health")
    assert (response.status_code, response.json()["status"]) == (status, state)


async def test_probes_are_on_the_api_port_and_metrics_are_not(world: World) -> None:
    await world.http.post("/v1/completions", json={**BODY, "stream": True})
    assert (await world.http.get("/livez")).status_code == 200
    assert (await world.http.get("/readyz")).status_code == 200
    assert (await world.http.get("/metrics")).status_code == 404, "the API port is for clients"
    assert world.metric("stratos_requests_total", route="/v1/completions", status="200") == 1


async def test_nothing_of_prompts_or_keys_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="stratos")
    await world.http.post("/v1/completions", json={**BODY, "prompt": "MARKER-IN-PROMPT"})
    await world.http.post("/v1/completions", json={**BODY, "MARKER-IN-PROMPT": 1})
    assert "MARKER" not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_workers_name_the_routes_own_parameters(world: World, stream: bool) -> None:
    world.worker.error = ContextLengthExceeded("prompt_ids has 9 tokens, at most 4", param="prompt_ids")
    body = {"model": "base", "stream": stream}
    check_error(
        await world.http.post("/v1/completions", json={**body, "prompt": "x"}), 400, "context_length_exceeded", "prompt"
    )
    chat = {**body, "messages": [{"role": "user", "content": "x"}]}
    check_error(await world.http.post("/v1/chat/completions", json=chat), 400, "context_length_exceeded", "messages")
    world.worker.error = BadRequest("a salt has at most 64 bytes", param="cache_salt")
    check_error(await world.http.post("/v1/completions", json={**body, "prompt": "x"}), 400, "invalid_request", None)


async def test_a_full_platform_does_not_say_how_many_workers_it_has(world: World) -> None:
    world.router.errors = [QueueTimeout("no worker took the request within 30.0 s (out: 2, batch_slots: 5)")]
    answer = await world.http.post("/v1/completions", json=BODY)
    check_error(answer, 503, "queue_timeout")
    assert "worker" not in answer.json()["error"]["message"]


async def test_a_stream_that_waits_hears_comments_and_then_its_tokens_or_its_error() -> None:
    async with gateway_world(http={"sse_keepalive_s": 0.05}) as world:
        world.worker.step_s = 0.15
        answer = await world.http.post("/v1/completions", json={**BODY, "stream": True})
        events = answer.text.split("\n\n")
        assert (answer.status_code, events[0], events[-2]) == (200, ": keep-alive", "data: [DONE]")
        told = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in told) == "hello world"
        world.worker.step_s = 30
        hurried = {"x-stratos-deadline-ms": "1500"}
        late, plain = await asyncio.gather(
            world.http.post("/v1/completions", json={**BODY, "stream": True}, headers=hurried),
            world.http.post("/v1/completions", json=BODY, headers=hurried),
        )
        *comments, last, end = late.text.split("\n\n")
        assert (late.status_code, end) == (200, "")
        assert set(comments) == {": keep-alive"}
        assert json.loads(last.removeprefix("data: "))["error"]["code"] in ("queue_timeout", "deadline_exceeded")
        assert plain.status_code == 503, "without a stream an error keeps its status"
