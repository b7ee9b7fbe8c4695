"""Anthropic's Messages API over HTTP, parsed by its documented schema: a real gateway before a scripted worker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stratos.common.errors import Overloaded
from stratos.core.tenancy.content import ContentPolicy, PromptMessage, PromptTemplate, PromptVersion
from tests.support.reference.message_stream import assembled, named_events
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

ARGUMENTS = '{"city": "Z\u00fcrich", "days": [1, 2], "note": "\\"}{\\" \U0001f600"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TEXT = f'Let me look.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'
TOOLS = [
    {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "now", "input_schema": {"type": "object"}},
]
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-1m-2025-08-07"}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "base", "max_tokens": 1000, "messages": [{"role": "user", "content": "How is it?"}], **more}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def post(world: World, path: str = "/v1/messages", key: str = KEY, **more: Any) -> httpx.Response:
    headers = {**HEADERS, "x-api-key": key}
    request = world.http.build_request("POST", path, json=body(**more), headers=headers)
    del request.headers["authorization"]
    return await world.http.send(request)


async def message(world: World, **more: Any) -> dict[str, Any]:
    answer = await post(world, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def streamed(world: World, **more: Any) -> dict[str, Any]:
    answer = await post(world, stream=True, **more)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return assembled(answer.text)


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in found["content"]]
    return {**found, "id": "", "content": content}


def prompt_of(world: World) -> str:
    return shipped_tokenizer().decode(world.worker.submits[-1].prompt_ids, skip_special=False)


async def test_a_message_whole_and_streamed(world: World) -> None:
    world.worker.script, world.worker.cached_tokens = say("hello world"), 5
    found = await message(world)
    num_prompt = len(world.worker.submits[0].prompt_ids)
    assert found == {
        "id": found["id"], "type": "message", "role": "assistant", "model": "base",
        "content": [{"type": "text", "text": "hello world"}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {
            "input_tokens": num_prompt - 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": len(shipped_tokenizer().encode_plain("hello world")) + 1,
        },
    }  # fmt: skip
    assert found["id"].startswith("msg_")
    assert without_ids(await streamed(world)) == without_ids(found)


async def test_calls_whole_and_streamed(world: World) -> None:
    world.worker.script = say(TEXT)
    found = await message(world, tools=TOOLS)
    assert found["stop_reason"] == "tool_use"
    assert [block["type"] for block in found["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in found["content"][1:]] == [json.loads(ARGUMENTS), {}]
    assert without_ids(await streamed(world, tools=TOOLS)) == without_ids(found)
    calls = [block for block in found["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "sunny <|end|>"} for call in calls]
    turns = [{"role": "assistant", "content": found["content"]}, {"role": "user", "content": results}]
    messages = [*body()["messages"], *turns]
    await message(world, tools=TOOLS, messages=messages, system="Be brief.")
    prompt = prompt_of(world)
    assert "Be brief.\n\n# Tools" in prompt
    assert prompt.count("<tool_response>\nsunny <|end|>\n</tool_response>") == 2
    assert "Let me look.\n<tool_call>" in prompt


async def test_a_stop_sequence_is_named(world: World) -> None:
    world.worker.script = say("one two three four")
    for stop in (["three", "four"], ["nothing", "three"]):
        found = await message(world, stop_sequences=stop)
        assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "three")
        assert found["content"] == [{"type": "text", "text": "one two "}]
        assert without_ids(await streamed(world, stop_sequences=stop)) == without_ids(found)
    found = await message(world, stop_sequences=["nothing"])
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert (await message(world, max_tokens=2))["stop_reason"] == "max_tokens"


async def test_enforced_calls_reach_the_worker_and_their_schemas_are_named(world: World) -> None:
    world.worker.script = say(CALL)
    for choice, num_tools in (("any", 2), ("auto", 0), ("none", 0)):
        world.worker.submits.clear()
        await message(world, tools=TOOLS, tool_choice={"type": choice})
        grammar = world.worker.submits[0].sampling.grammar
        assert (grammar.kind, grammar.text.count("%json")) == ("calls" if num_tools else "", num_tools)
    odd = {"name": "odd", "input_schema": {"type": "object", "not": {}}}
    answer = await post(world, tools=[*TOOLS, odd], tool_choice={"type": "any"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[2].input_schema")


async def test_an_answer_that_the_client_has_begun_goes_on(world: World) -> None:
    world.worker.script = lambda submit, choice: [*shipped_tokenizer().encode_plain(" sunny"), 4]
    messages = [*body()["messages"], {"role": "assistant", "content": "It is"}]
    found = await message(world, messages=messages)
    assert found["content"] == [{"type": "text", "text": " sunny"}]
    assert prompt_of(world).endswith("It is")


async def test_system_messages_stand_anywhere(world: World) -> None:
    later = {"role": "system", "content": "Mind the gap."}
    await message(world, system="First.", messages=[*body()["messages"], later, *body()["messages"]])
    prompt = prompt_of(world)
    assert prompt.index("First.") < prompt.index("How is it?") < prompt.index("Mind the gap.")


async def test_what_means_nothing_here_is_named_in_a_header(world: World) -> None:
    for stream in (False, True):
        answer = await post(world, diagnostics={"previous_message_id": "msg_1"}, stream=stream)
        assert answer.headers["x-stratos-ignored"] == "diagnostics"
    assert "x-stratos-ignored" not in (await post(world)).headers


async def test_counted_tokens_are_those_that_it_is_billed_for(world: World) -> None:
    fields = {"tools": TOOLS, "system": "Be brief."}
    counted = await post(world, "/v1/messages/count_tokens", **fields)
    assert counted.json() == {"input_tokens": (await message(world, **fields))["usage"]["input_tokens"]}
    long = [{"role": "user", "content": "a b c " * 20_000}]
    assert (await post(world, "/v1/messages/count_tokens", messages=long)).json()["input_tokens"] > 60_000


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_errors_have_the_envelope_of_this_api(world: World, path: str) -> None:
    cases: list[tuple[httpx.Response, int, str]] = [
        (await post(world, path, key="sk-unknown"), 401, "authentication_error"),
        (await post(world, path, model="gone"), 404, "not_found_error"),
        (await post(world, path, messages=[]), 400, "invalid_request_error"),
        (await world.http.get(path), 405, "not_found_error"),
        (await world.http.post(path, content=b"{"), 400, "invalid_request_error"),
        (await world.http.post(path, content=b"x" * (3 << 20)), 413, "request_too_large"),
    ]
    world.keys.change_plan(KEY, requests_per_min=1, burst_s=60)
    assert (await post(world, path)).status_code == 200
    cases.append((await post(world, path), 429, "rate_limit_error"))
    world.blocks.models.add("base")
    cases.append((await post(world, path), 403, "permission_error"))
    for answer, status, kind in cases:
        found = answer.json()
        assert (answer.status_code, found["type"], found["error"]["type"]) == (status, "error", kind), answer.text
        assert found["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
        assert set(found["error"]) == {"type", "message", "param", "code"}
    assert "retry-after" in cases[6][0].headers


async def test_a_full_platform_is_overloaded_before_the_stream_and_within_it() -> None:
    async with gateway_world(http={"sse_keepalive_s": 0.05}) as world:
        world.router.errors = [Overloaded("full")]
        answer = await post(world)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")
        world.worker.step_s = 30.0
        headers = {"x-stratos-deadline-ms": "1000"}
        late = await world.http.post("/v1/messages", json=body(stream=True), headers=headers)
        assert late.status_code == 200
        assert [event["type"] for event in named_events(late.text)] == ["error"]


async def test_a_silent_stream_is_pinged_once_it_has_begun() -> None:
    async with gateway_world(http={"sse_keepalive_s": 0.05}) as world:
        world.worker.step_s = 0.5
        answer = await post(world, stream=True)
        kinds = [event["type"] for event in named_events(answer.text)]
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop"), "until then a comment says that it lives"
        assert "ping" in kinds


@pytest.mark.parametrize("num_tokens", [1, 20])
async def test_a_worker_killed_in_the_middle_of_a_call_changes_nothing(num_tokens: int) -> None:
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.script = say(TEXT)
        world.worker.die_after = num_tokens
        found = await streamed(world, tools=TOOLS)
        assert [block["input"] for block in found["content"][1:]] == [json.loads(ARGUMENTS), {}]
        assert found["stop_reason"] == "tool_use"
        assert [len(worker.submits) for worker in world.workers] == [1, 1]


def turn(role: str, **block: Any) -> dict[str, Any]:
    return {"messages": [*body()["messages"], {"role": role, "content": [block]}, *body()["messages"]]}


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "some bad\nstuff"},
        {"tools": [{"name": "f", "description": "bad stuff"}]},
        turn("user", type="tool_result", tool_use_id="a", content="bad stuff"),
        turn("assistant", type="thinking", thinking="bad stuff"),
        turn("assistant", type="tool_use", id="a", name="f", input={"x": "bad stuff"}),
    ],
    ids=["system", "description", "result", "thinking", "input"],
)
async def test_a_content_policy_reads_all_that_a_client_writes(world: World, fields: dict[str, Any]) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("bad stuff",)})
    await message(world, **fields)
    world.keys.change_plan(KEY, content_policy="rules")
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await post(world, path, **fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
    assert world.placed == 1


async def test_a_hit_in_the_answer_is_a_refusal(world: World) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("Z\u00fcrich",)}, replacement="[cut]")
    world.keys.change_plan(KEY, content_policy="rules")
    world.worker.script = say(TEXT)
    found = await message(world, tools=TOOLS)
    assert (found["stop_reason"], found["content"]) == ("refusal", [{"type": "text", "text": "[cut]"}])
    found = await streamed(world, tools=TOOLS)
    assert found["stop_reason"] == "refusal"
    assert "[cut]" not in str(found["content"]), "it would break the arguments"


async def test_a_template_of_the_tenant_comes_before_the_messages(world: World) -> None:
    version = PromptVersion(messages=(PromptMessage(role="system", text="Speak of {{ thing }}."),))
    world.content.templates["one", "about"] = PromptTemplate(versions={1: version})
    await message(world, prompt={"id": "about", "variables": {"thing": "weather"}})
    assert "Speak of weather." in prompt_of(world)
