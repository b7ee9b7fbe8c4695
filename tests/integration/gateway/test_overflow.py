"""Requests that would wait too long go to a scripted external endpoint, over real sockets, or wait here after all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stratos.common.errors import WaitTooLong
from stratos.core.tenancy.content import ContentPolicy
from tests.support.fakes.scripted_http import Asked, Reply, ScriptedHttp, scripted_http
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, make_adapter, say

CHAT = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0.5}
USAGE = {"prompt_tokens": 70, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 5}}
HEADER = "x-stratos-served-by"
LABELS = {"model": "base", "class": "1"}


async def outside(asked: Asked, reply: Reply) -> None:
    """Every choice says "from outside"."""
    await reply.begin_events()
    await reply.write(b": a comment\r\n\r\n")
    for piece in ("from ", "out", "side"):
        for index in range(asked.body["n"]):
            await reply.event({"choices": [choice_of(asked, index, piece)]})
    for index in range(asked.body["n"]):
        await reply.event({"choices": [{**choice_of(asked, index, ""), "finish_reason": "stop"}]})
    await reply.event({"choices": [], "usage": USAGE})
    await reply.event("[DONE]")


def choice_of(asked: Asked, index: int, text: str) -> dict[str, Any]:
    said = {"delta": {"content": text}} if "messages" in asked.body else {"text": text}
    return {"index": index, "finish_reason": None, **said}


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedHttp]:
    async with scripted_http(outside) as found:
        yield found


@pytest.fixture
async def world(endpoint: ScriptedHttp) -> AsyncIterator[World]:
    overflow = {
        "url": f"{endpoint.url}/v1/", "key": "sekret", "model": "other", "after_s": 2.5, "first_token_timeout_s": 0.4,
        "idle_timeout_s": 0.4,
    }  # fmt: skip
    async with gateway_world(overflow=overflow) as found:
        found.router.errors = [WaitTooLong("scripted")]
        yield found


async def chat(world: World, key: str = KEY, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return await world.http.post("/v1/chat/completions", json={**CHAT, **body}, headers=headers)


async def streamed(world: World, **body: Any) -> tuple[list[Any], str | None]:
    found = []
    async with world.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return found, answer.headers.get(HEADER)


def text_of(events: list[Any]) -> str:
    return "".join(c["delta"].get("content") or "" for e in events[:-1] for c in e.get("choices", ()))


async def test_a_request_that_would_wait_too_long_is_served_outside(world: World, endpoint: ScriptedHttp) -> None:
    answer = await chat(world, n=2, stop=["END"], seed=7)
    body = answer.json()
    assert [c["message"]["content"] for c in body["choices"]] == ["from outside"] * 2
    assert [c["finish_reason"] for c in body["choices"]] == ["stop"] * 2
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (70, 30)
    assert body["model"] == "base"
    assert answer.headers[HEADER] == "external"
    [asked] = endpoint.asked
    assert (asked.path, asked.headers["authorization"]) == ("/v1/chat/completions", "Bearer sekret")
    assert asked.body == {
        "messages": CHAT["messages"], "temperature": 0.5, "stop": ["END"], "seed": 7, "n": 2, "model": "other",
        "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert not world.worker.submits
    assert [request.overflow_after_ms for request in world.router.requests] == [2500]
    assert world.metric("stratos_overflow_requests_total", outcome="served") == 1
    assert world.metric("stratos_prefills_total", path="external") == 1
    assert world.metric("stratos_output_tokens_total", tenant="one", **LABELS) == 30


async def test_it_is_streamed_and_a_completion_too(world: World, endpoint: ScriptedHttp) -> None:
    events, served_by = await streamed(world, stream_options={"include_usage": True})
    assert (text_of(events), served_by, events[-1]) == ("from outside", "external", "[DONE]")
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-2]["usage"]["completion_tokens"] == 30
    world.router.errors = [WaitTooLong("scripted")]
    body = {"model": "base", "prompt": "once", "max_tokens": 4}
    answer = await world.http.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == "from outside"
    assert (endpoint.asked[1].path, endpoint.asked[1].body["prompt"]) == ("/v1/completions", "once")


async def test_what_stays_inside(world: World, endpoint: ScriptedHttp) -> None:
    """The router is not even told that it could go."""
    world.worker.script = say('{"from": "inside"}')
    world.router.errors = []
    world.registry.adapters = {"": [make_adapter("tuned")]}
    stays: list[dict[str, Any]] = [
        {"model": "tuned"}, {"logprobs": True}, {"return_token_ids": True}, {"top_k": 3}, {"logit_bias": {"5": 1}},
        {"response_format": {"type": "json_object"}}, {"bad_words": ["x"]},
    ]  # fmt: skip
    for body in stays:
        assert (await chat(world, **body)).status_code == 200, body
    for prompt in ([5, 6], ["a", "b"]):
        body = {"model": "base", "prompt": prompt, "max_tokens": 2}
        assert (await world.http.post("/v1/completions", json=body)).status_code == 200
    world.keys.change_plan(OTHER_KEY, resident_only=True)
    assert (await chat(world, OTHER_KEY)).status_code == 200
    assert {request.overflow_after_ms for request in world.router.requests} == {0}
    answer = await chat(world)
    assert (answer.status_code, answer.headers.get(HEADER)) == (200, None)
    assert world.router.requests[-1].overflow_after_ms == 2500, "it could have gone, and there was room here"
    assert not endpoint.asked


async def test_a_chain_asks_its_next_model_before_anything_leaves(world: World, endpoint: ScriptedHttp) -> None:
    [entry] = (await world.http.get("/v1/models")).json()["data"]
    pin = f"base@{entry['revision'][:8]}"
    body = {**CHAT, "models": ["base", pin]}
    del body["model"]
    answer = await world.http.post("/v1/chat/completions", json=body)
    assert (answer.headers["x-stratos-model"], answer.headers.get(HEADER)) == (pin, None)
    assert answer.headers["x-stratos-model-refused"] == "base=wait_too_long"
    assert [request.overflow_after_ms for request in world.router.requests] == [1000, 0]
    world.router.errors = [WaitTooLong("scripted"), WaitTooLong("scripted")]
    answer = await world.http.post("/v1/chat/completions", json=body | {"models": [pin, "base"]})
    assert (answer.headers["x-stratos-model"], answer.headers.get(HEADER)) == ("base", "external")
    assert len(endpoint.asked) == 1, "the last one overflows"


async def test_off_by_default() -> None:
    async with gateway_world() as world:
        assert (await chat(world)).status_code == 200
        assert world.router.requests[0].overflow_after_ms == 0


async def refusing(asked: Asked, reply: Reply) -> None:
    await reply.send({"error": {"message": "no"}}, status=429)


async def silent(asked: Asked, reply: Reply) -> None:
    await reply.begin_events()
    await asyncio.Event().wait()


async def garbage(asked: Asked, reply: Reply) -> None:
    await reply.begin_events()
    await reply.event("<html>")


async def odd(asked: Asked, reply: Reply) -> None:
    await reply.begin_events()
    await reply.event({"choices": [{"index": 7, "delta": {"content": "x"}}]})


async def failing(asked: Asked, reply: Reply) -> None:
    await reply.begin_events()
    await reply.event({"error": {"message": "overloaded"}})


async def broken(asked: Asked, reply: Reply) -> None:
    """It ends in the middle."""
    await reply.begin_events()
    await reply.event({"choices": [choice_of(asked, 0, "from ")]})


async def stalled(asked: Asked, reply: Reply) -> None:
    await broken(asked, reply)
    await asyncio.Event().wait()


async def aborted(asked: Asked, reply: Reply) -> None:
    """It ends by a word that says so, as whole answers do."""
    await broken(asked, reply)
    await reply.event({"choices": [{**choice_of(asked, 0, ""), "finish_reason": "abort"}]})
    await reply.event({"choices": [], "usage": USAGE})
    await reply.event("[DONE]")


async def boasting(asked: Asked, reply: Reply) -> None:
    """Counts that no ledger can add up."""
    await reply.begin_events()
    await reply.event({"choices": [{**choice_of(asked, 0, "from "), "finish_reason": "stop"}]})
    await reply.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": (1 << 63) - 1}})
    await reply.event("[DONE]")


@pytest.mark.parametrize("script", [refusing, silent, garbage, odd, failing, broken, stalled, aborted, boasting])
async def test_where_the_endpoint_fails_the_request_waits_here(
    world: World, endpoint: ScriptedHttp, script: Any
) -> None:
    endpoint.script = script
    answer = await chat(world)
    assert answer.json()["choices"][0]["message"]["content"] == "hello world"
    assert HEADER not in answer.headers
    first, second = world.router.requests
    assert (first.overflow_after_ms, second.overflow_after_ms) == (2500, 0)
    assert second.waited_ms > 0, "it keeps its place in the queue"
    assert world.metric("stratos_overflow_requests_total", outcome="failed") == 1
    usage = answer.json()["usage"]
    assert world.metric("stratos_output_tokens_total", tenant="one", **LABELS) == usage["completion_tokens"]
    assert world.metric("stratos_prompt_tokens_total", tenant="one", **LABELS) == usage["prompt_tokens"]


async def test_an_endpoint_that_is_not_there_is_no_error(world: World, endpoint: ScriptedHttp) -> None:
    async with gateway_world(overflow={"url": "http://127.0.0.1:9/v1"}) as other:
        other.router.errors = [WaitTooLong("scripted")]
        assert (await chat(other)).json()["choices"][0]["message"]["content"] == "hello world"


@pytest.mark.parametrize("script", [broken, stalled, aborted])
async def test_a_stream_that_has_begun_ends_with_an_error_and_never_goes_on_elsewhere(
    world: World, endpoint: ScriptedHttp, script: Any
) -> None:
    endpoint.script = script
    events, served_by = await streamed(world)
    assert served_by == "external"
    assert events[-1]["error"]["code"] == "overloaded"
    assert len(world.router.requests) == 1
    assert not world.worker.submits
    assert world.metric("stratos_overflow_requests_total", outcome="broken") == 1
    assert world.metric("stratos_output_tokens_total", tenant="one", **LABELS) == len(
        shipped_tokenizer().encode_plain("from ")
    )


async def test_what_comes_from_outside_goes_through_the_policy(world: World, endpoint: ScriptedHttp) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"w": ("outside",)}, replacement="[cut]")
    world.keys.change_plan(KEY, content_policy="rules")
    body = (await chat(world)).json()["choices"][0]
    assert (body["message"]["content"], body["finish_reason"]) == ("[cut]", "content_filter")


async def test_a_client_that_leaves_ends_the_request_outside(world: World, endpoint: ScriptedHttp) -> None:
    async def endless(asked: Asked, reply: Reply) -> None:
        await reply.begin_events()
        while True:
            await reply.event({"choices": [choice_of(asked, 0, "on ")]})
            await asyncio.sleep(0.01)

    endpoint.script = endless
    async with world.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if "on " in line:
                break
    await eventually(lambda: endpoint.num_left == 1, "the endpoint was left")
    await eventually(lambda: world.metric("stratos_requests_open") == 0, "no request is open")


@contextlib.asynccontextmanager
async def silent_world(url: str, **overflow: Any) -> AsyncIterator[World]:
    """Comments come long before the endpoint's time is over."""
    config = {"url": f"{url}/v1/", "first_token_timeout_s": 0.4, "idle_timeout_s": 5.0, **overflow}
    async with gateway_world(overflow=config, http={"sse_keepalive_s": 0.05}) as world:
        world.router.errors = [WaitTooLong("scripted")]
        yield world


async def raw_stream(world: World) -> tuple[str, str | None]:
    answer = await world.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.status_code == 200
    return answer.text, answer.headers.get(HEADER)


async def test_a_stream_that_waits_for_the_endpoint_hears_comments(endpoint: ScriptedHttp) -> None:
    may_answer = asyncio.Event()

    async def late(asked: Asked, reply: Reply) -> None:
        await may_answer.wait()
        await outside(asked, reply)

    endpoint.script = late
    body = {**CHAT, "stream": True}
    async with (
        silent_world(endpoint.url, first_token_timeout_s=60.0) as world,
        world.http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert await anext(lines) == ": keep-alive"
        may_answer.set()
        text = "\n".join([line async for line in lines])
    assert "from " in text
    assert text.rstrip().endswith("data: [DONE]")


async def test_a_stream_that_might_have_left_hears_comments_once_it_runs_here(endpoint: ScriptedHttp) -> None:
    """Its worker is silent between two tokens: a proxy cuts a connection on which nothing comes."""
    async with silent_world(endpoint.url) as world:
        world.router.errors = []
        world.worker.hang_after = 1
        async with world.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            assert answer.status_code == 200
            said = list[str]()
            async for line in answer.aiter_lines():
                said.append(line)
                if line.startswith(": keep-alive") and any(one.startswith("data: ") for one in said):
                    break
        assert endpoint.asked == [], "it was placed here"
        assert [request.overflow_after_ms > 0 for request in world.router.requests] == [True], "and might have left"


async def test_where_the_endpoint_fails_after_comments_the_same_stream_goes_on_here(endpoint: ScriptedHttp) -> None:
    endpoint.script = silent
    async with silent_world(endpoint.url) as world:
        text, served_by = await raw_stream(world)
    assert text.startswith(": keep-alive")
    assert "".join(c["delta"].get("content", "") for e in events_of(text) for c in e["choices"]) == "hello world"
    assert text.endswith("data: [DONE]\n\n")
    assert served_by is None


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]


async def test_a_message_goes_outside_unless_its_stop_sequence_would_not_be_known(
    world: World, endpoint: ScriptedHttp
) -> None:
    body = {**CHAT, "system": "Be brief."}
    body.pop("n", None)
    answer = await world.http.post("/v1/messages", json=body)
    assert answer.json()["content"] == [{"type": "text", "text": "from outside"}]
    assert answer.json()["usage"]["output_tokens"] > 0
    assert answer.headers[HEADER] == "external"
    assert endpoint.asked[0].body["messages"] == [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]
    assert (await world.http.post("/v1/messages", json={**body, "stop_sequences": ["END"]})).status_code == 200
    assert [request.overflow_after_ms for request in world.router.requests] == [2500, 0]
