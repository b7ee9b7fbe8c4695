"""Prompts that clients mark: which tokens a worker is asked to keep, and what answer, receipt and ledger say of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from stratos.core.features import Feature
from stratos.core.requests.pins import TTL_1H_S, TTL_5M_S, TTL_24H_S
from stratos.core.tenancy.plan import CachePolicy
from tests.support.reference.message_stream import assembled
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world
from tests.support.worlds.socket_client import SocketClient

FACTS, QUESTION = "The sky is blue. " * 12, "Which colour has it?"
MARK, HOUR = {"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "now", "description": "The time, in the town of the client.", "input_schema": {"type": "object"}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        made.worker.pinned_tokens = 4096
        yield made


def text(value: str, **mark: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **mark}


def asked(world: World) -> list[tuple[int, int]]:
    """Breakpoints of the last Submit."""
    return [(mark.num_tokens, mark.ttl_s) for mark in world.worker.submits[-1].terms.pins.breakpoints]


def kept_text(world: World, num_tokens: int) -> str:
    return shipped_tokenizer().decode(world.worker.submits[-1].prompt_ids[:num_tokens], skip_special=False)


async def post(world: World, path: str, body: dict[str, Any]) -> httpx.Response:
    return await world.http.post(path, json={"model": "base", "max_tokens": 4, **body})


async def chat(world: World, content: Any = QUESTION, **more: Any) -> httpx.Response:
    return await post(world, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **more})


async def message(world: World, content: Any = QUESTION, **more: Any) -> httpx.Response:
    return await post(world, "/v1/messages", {"messages": [{"role": "user", "content": content}], **more})


async def test_a_breakpoint_ends_where_its_part_does(world: World) -> None:
    for mark, ttl_s in (
        (MARK, TTL_5M_S), (HOUR, TTL_1H_S), ({"cache_control": {"type": "ephemeral", "ttl": "24h"}}, TTL_24H_S),
        ({"prompt_cache_breakpoint": {"mode": "explicit"}}, TTL_1H_S),
        ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, TTL_24H_S),
    ):  # fmt: skip
        answer = await chat(world, [text(FACTS, **mark), text(QUESTION)])
        [(num_tokens, seconds)] = asked(world)
        assert (answer.status_code, seconds) == (200, ttl_s)
        assert FACTS.strip() in kept_text(world, num_tokens)
        assert QUESTION[:5] not in kept_text(world, num_tokens)
        assert "x-stratos-ignored" not in answer.headers
        assert answer.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": num_tokens}


async def test_marks_stand_in_tools_system_texts_results_and_at_the_end(world: World) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("noon " * 30)], **MARK}
    turns = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": [text("Let me look."), use]},
        {"role": "user", "content": [result, text("And now?")]},
    ]
    answer = await post(
        world, "/v1/messages",
        {"messages": turns, "tools": [{**TOOL, **HOUR}], "system": [text("Be brief."), text(FACTS, **HOUR)], **MARK},
    )  # fmt: skip
    marks = asked(world)
    assert answer.status_code == 200, answer.text
    assert len(marks) == 4
    assert marks == sorted(marks), "in the order of the prompt"
    assert sorted(ttl_s for _, ttl_s in marks) == [TTL_5M_S] * 2 + [TTL_1H_S] * 2
    kept = [kept_text(world, num_tokens) for num_tokens, _ in marks]
    assert any(told.rstrip().endswith("noon") and told.count("noon") == 30 for told in kept)
    assert any(told.rstrip().endswith("blue.") for told in kept)
    assert kept[-1].endswith("And now?")


async def test_a_whole_prompt_is_kept_as_long_as_its_retention_says(world: World) -> None:
    for value, ttl_s in (("in_memory", TTL_5M_S), ("24h", TTL_24H_S)):
        for path, prompt in (
            ("/v1/completions", {"prompt": FACTS}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": FACTS}]}),
        ):
            await post(world, path, {**prompt, "prompt_cache_retention": value})
            assert asked(world) == [(len(world.worker.submits[-1].prompt_ids), ttl_s)]
    answer = await world.http.post(
        "/v1/responses",
        json={"model": "base", "input": FACTS, "max_output_tokens": 4, "prompt_cache_retention": "24h", "store": False},
    )
    [(num_tokens, ttl_s)] = asked(world)
    assert (answer.json()["usage"]["input_tokens_details"]["cache_write_tokens"], ttl_s) == (num_tokens, TTL_24H_S)
    await chat(world)
    assert not world.worker.submits[-1].terms.HasField("pins")


async def respond(world: World, given: Any, **more: Any) -> httpx.Response:
    body = {"model": "base", "max_output_tokens": 4, "store": False, "input": given, **more}
    return await world.http.post("/v1/responses", json=body)


async def test_options_keep_the_whole_prompt_unless_they_name_breakpoints_alone(world: World) -> None:
    marked = text(FACTS, prompt_cache_breakpoint={"mode": "explicit"})
    for options, whole, part in (
        ({"mode": "implicit"}, [TTL_1H_S], TTL_1H_S), ({"ttl": "30m"}, [TTL_1H_S], TTL_1H_S),
        ({"ttl": "12h"}, [TTL_24H_S], TTL_24H_S), ({"mode": "explicit", "ttl": "12h"}, [], TTL_24H_S),
        ({"mode": "explicit"}, [], TTL_1H_S), ({}, [], TTL_1H_S),
    ):  # fmt: skip
        parts = [{**marked, "type": "input_text"}, {"type": "input_text", "text": QUESTION}]
        for answer in (
            await chat(world, [marked, text(QUESTION)], prompt_cache_options=options),
            await respond(world, [{"role": "user", "content": parts}], prompt_cache_options=options),
        ):
            assert answer.status_code == 200, answer.text
            assert [ttl_s for _, ttl_s in asked(world)] == [part, *whole]
            assert FACTS.strip() in kept_text(world, asked(world)[0][0])
            assert QUESTION[:5] not in kept_text(world, asked(world)[0][0])
    assert answer.json().get("prompt_cache_options") is None
    answer = await respond(world, FACTS, prompt_cache_options={"mode": "implicit"})
    assert answer.json()["prompt_cache_options"] == {"mode": "implicit"}
    assert asked(world) == [(len(world.worker.submits[-1].prompt_ids), TTL_1H_S)]
    await post(world, "/v1/completions", {"prompt": FACTS, "prompt_cache_options": {"ttl": "12h"}})
    assert asked(world) == [(len(world.worker.submits[-1].prompt_ids), TTL_24H_S)]


async def test_the_last_four_breakpoints_of_a_conversation_hold(world: World) -> None:
    parts = [text(f"part {number} " * 8, prompt_cache_breakpoint={"mode": "explicit"}) for number in range(6)]
    for answer in (
        await chat(world, parts),
        await respond(world, [{"role": "user", "content": [{**part, "type": "input_text"} for part in parts]}]),
    ):
        assert (answer.status_code, len(asked(world))) == (200, 4)
        told = kept_text(world, asked(world)[0][0])
        assert "part 2" in told
        assert "part 3" not in told


async def test_marks_of_a_response_hold_where_another_goes_on_from_it(world: World) -> None:
    """Its input is the beginning of the next prompt, and so are the prefixes that it had kept."""
    part = {"type": "input_text", "text": FACTS, "prompt_cache_breakpoint": {"mode": "explicit"}}
    first = [{"role": "user", "content": [part, {"type": "input_text", "text": QUESTION}]}]
    more = {**part, "text": "It is wide. " * 12}
    second = [{"role": "user", "content": [more, {"type": "input_text", "text": "And now?"}]}]
    async with SocketClient(world) as socket:
        socket.say({"type": "response.create", "model": "base", "input": first})
        response = (await socket.events())[-1]["response"]
        [(num_tokens, ttl_s)] = asked(world)
        beginning = world.worker.submits[-1].prompt_ids[:num_tokens]
        socket.say(
            {"type": "response.create", "model": "base", "input": second, "previous_response_id": response["id"]}
        )
        assert (await socket.events())[-1]["type"] == "response.completed"
    assert asked(world)[0] == (num_tokens, ttl_s)
    assert world.worker.submits[-1].prompt_ids[:num_tokens] == beginning
    assert [told for told, _ in asked(world)] == sorted({told for told, _ in asked(world)})
    assert len(asked(world)) == 2
    assert "It is wide." in kept_text(world, asked(world)[1][0])
    assert "And now?" not in kept_text(world, asked(world)[1][0])


async def test_messages_tell_what_was_read_and_what_was_written_by_time(world: World) -> None:
    world.worker.cached_tokens = world.worker.kept_tokens = 32
    found = (await message(world, [text(FACTS, **HOUR), text(QUESTION, **MARK)])).json()["usage"]
    (first, _), (second, _) = asked(world)
    num_prompt = len(world.worker.submits[-1].prompt_ids)
    assert found["cache_creation"] == {
        "ephemeral_5m_input_tokens": second - first, "ephemeral_1h_input_tokens": first - 32,
    }  # fmt: skip
    assert found["cache_creation_input_tokens"] == second - 32
    assert (found["cache_read_input_tokens"], found["input_tokens"]) == (32, num_prompt - second)
    streamed = await message(world, [text(FACTS, **HOUR), text(QUESTION, **MARK)], stream=True)
    assert assembled(streamed.text)["usage"] == found


async def test_a_worker_that_kept_nothing_wrote_nothing(world: World) -> None:
    world.worker.pinned_tokens = 0
    usage = (await message(world, [text(FACTS, **MARK)])).json()["usage"]
    assert (usage["cache_creation_input_tokens"], usage["input_tokens"] > 0) == (0, True)
    assert asked(world)


async def test_what_was_cached_and_is_kept_since_a_request_is_written(world: World) -> None:
    world.worker.cached_tokens, world.worker.kept_tokens = 48, 32
    usage = (await message(world, [text(FACTS, **MARK), text(QUESTION)])).json()["usage"]
    [(num_tokens, _)] = asked(world)
    assert num_tokens > 48
    assert (usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) == (num_tokens - 32, 32)
    assert usage["input_tokens"] == len(world.worker.submits[-1].prompt_ids) - num_tokens
    details = (await chat(world, [text(FACTS, **MARK), text(QUESTION)])).json()["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 48, "cache_write_tokens": num_tokens - 32}


@pytest.mark.parametrize("plan", [{"pinned_kv_ratio": 0.0}, {"cache_policy": CachePolicy.OFF}])
async def test_a_plan_without_a_quota_answers_and_says_what_it_ignores(world: World, plan: dict[str, Any]) -> None:
    tenant = world.keys.tenants[KEY]
    world.keys.tenants[KEY] = replace(tenant, plan=replace(tenant.plan, **plan))
    both = {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}}
    answer = await chat(world, [text(FACTS, **MARK)], **both)
    assert (answer.status_code, asked(world)) == (200, [])
    assert answer.headers["x-stratos-ignored"] == "cache_control, prompt_cache_retention, prompt_cache_options"


async def test_a_plan_bounds_how_long_its_prompts_are_kept_and_a_shorter_time_stays(world: World) -> None:
    tenant = world.keys.tenants[KEY]
    world.keys.tenants[KEY] = replace(tenant, plan=replace(tenant.plan, max_pin_s=1200))
    await chat(world, [text(FACTS, **MARK), text(FACTS, **HOUR), text(QUESTION)], prompt_cache_retention="24h")
    assert [ttl_s for _, ttl_s in asked(world)] == [TTL_5M_S, 1200, 1200]
    world.keys.tenants[KEY] = replace(tenant, plan=replace(tenant.plan, max_pin_s=60))
    answer = await chat(world, [text(FACTS, **MARK), text(QUESTION)])
    assert [ttl_s for _, ttl_s in asked(world)] == [60]
    assert "x-stratos-ignored" not in answer.headers, "it is kept, for as long as the plan allows"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"content": [text("x", cache_control={"type": "ephemeral", "ttl": "7d"})]}, "content[0].cache_control.ttl"),
        ({"content": [text("x", cache_control={"type": "persistent"})]}, "content[0].cache_control.type"),
        ({"content": [text("x", prompt_cache_breakpoint={"mode": "implicit"})]}, "prompt_cache_breakpoint.mode"),
        ({"content": [text("x", prompt_cache_breakpoint={"mode": "explicit", "ttl": []})]}, "breakpoint.ttl"),
        ({"content": [text("x", **MARK)] * 5}, "cache_control"),
        ({"content": [text("x", **MARK)] * 4, **MARK}, "cache_control"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"scope": "x"}}, "prompt_cache_options.scope"),
        ({"prompt_cache_options": "implicit"}, "prompt_cache_options"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"prompt_cache_retention": ["24h"]}, "prompt_cache_retention"),
    ],
)
async def test_what_is_no_mark_is_refused_by_name(world: World, more: dict[str, Any], param: str) -> None:
    answer = await chat(world, more.pop("content", QUESTION), **more)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].endswith(param)
    assert not world.worker.submits


async def test_marks_of_thinking_are_ignored_by_name(world: World) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "", **MARK}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thinking, text("b")]},
        {"role": "user", "content": "c"},
    ]
    answer = await post(world, "/v1/messages", {"messages": turns})
    assert (answer.status_code, answer.headers["x-stratos-ignored"], asked(world)) == (200, "cache_control", [])


async def test_an_older_worker_is_not_asked_to_keep_anything() -> None:
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.features = frozenset(Feature) - {Feature.PINS}
        answer = await chat(world, [text(FACTS, **MARK)])
        assert (answer.status_code, asked(world)) == (200, [])
