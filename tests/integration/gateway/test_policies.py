"""Prompt templates and content policies over HTTP: a real gateway, a scripted worker and a scripted classifier."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stratos.core.tenancy.content import ContentPolicy, PromptMessage, PromptTemplate, PromptVersion
from tests.support.fakes.scripted_http import Asked, Reply, ScriptedHttp, scripted_http
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY
from tests.support.worlds.gateway_world import World, gateway_world, say

CLEAN = "one two three four five six seven eight nine ten "
BAD = f"{CLEAN}this is bad stuff and more of it"
RULES = ContentPolicy(words={"foul": ("bad stuff",)}, patterns={"digits": "[0-9]{6}"}, replacement="[cut]")
CHAT = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}


@pytest.fixture
async def classifier() -> AsyncIterator[ScriptedHttp]:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.send(scores(0.9 if "vile" in asked.body["input"] else 0.1))

    async with scripted_http(script) as found:
        yield found


@pytest.fixture
async def world(classifier: ScriptedHttp) -> AsyncIterator[World]:
    policies = {
        "classifier_url": f"{classifier.url}/v1/moderations", "classifier_key": "sekret",
        "classifier_timeout_s": 0.5, "classifier_model": "judge",
    }  # fmt: skip
    async with gateway_world(policies=policies) as found:
        found.content.policies["rules"] = RULES
        found.keys.change_plan(KEY, content_policy="rules")
        yield found


def scores(*values: object) -> dict[str, Any]:
    return {"results": [{"flagged": False, "category_scores": {f"c{i}": value for i, value in enumerate(values)}}]}


async def chat(world: World, **body: Any) -> httpx.Response:
    return await world.http.post("/v1/chat/completions", json={**CHAT, **body})


async def events(world: World, path: str = "/v1/chat/completions", **body: Any) -> list[dict[str, Any]]:
    found = []
    async with world.http.stream("POST", path, json={**CHAT, "stream": True, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                found.append(json.loads(line.removeprefix("data: ")))
    return found


def text_of(found: list[dict[str, Any]], index: int = 0) -> tuple[str, str | None]:
    choices = [choice for event in found for choice in event["choices"] if choice["index"] == index]
    return "".join(c["delta"].get("content") or "" for c in choices), choices[-1]["finish_reason"]


def code_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_input_with_a_hit_is_refused_on_every_route_and_takes_no_tokens(world: World) -> None:
    world.keys.change_plan(KEY, tokens_per_min=1000)
    refused = [{"role": "user", "content": [{"type": "text", "text": "some bad  stuff"}]}]
    assert code_of(await chat(world, messages=refused)) == (400, "content_filter", "messages")
    ids = shipped_tokenizer().encode_plain("some bad stuff")
    for prompt in ("some BAD stuff.", ["fine", "n 123456"], ids):
        body = {"model": "base", "prompt": prompt, "max_tokens": 2}
        assert code_of(await world.http.post("/v1/completions", json=body)) == (400, "content_filter", "prompt")
    body = {"model": "base", "input": ["fine", "bad stuff"]}
    assert code_of(await world.http.post("/v1/embeddings", json=body)) == (400, "content_filter", "input")
    assert not world.worker.submits
    answer = await chat(world)
    assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 900
    assert (await chat(world, messages=[{"role": "user", "content": "badstuff 12345"}])).status_code == 200
    assert world.metric("stratos_content_hits_total", tenant="one", rule="foul", side="input") >= 3


async def test_output_with_a_hit_ends_there_at_the_worker_too(world: World) -> None:
    world.worker.script, world.worker.step_s = say(BAD + " and on and on" * 20), 0.002
    whole = (await chat(world, max_tokens=400)).json()
    choice, usage = whole["choices"][0], whole["usage"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("[cut]", "content_filter")
    num_until_hit = len(shipped_tokenizer().encode_plain(BAD))
    assert num_until_hit - 6 <= usage["completion_tokens"] <= num_until_hit + 60, "what was decoded until the hit"
    found = await events(world, max_tokens=400, stream_options={"include_usage": True})
    assert text_of(found) == (f"{CLEAN}this is[cut]", "content_filter")
    assert found[-1]["usage"]["completion_tokens"] < 120
    await world.wait_idle()
    assert world.metric("stratos_content_hits_total", tenant="one", rule="foul", side="output") == 2
    world.keys.change_plan(KEY, content_policy="")
    assert BAD in (await chat(world, max_tokens=400)).json()["choices"][0]["message"]["content"]


async def test_one_of_several_choices_ends_and_the_others_go_on(world: World) -> None:
    bad, good = (say(text)(None, 0) for text in (BAD, CLEAN * 2))  # type: ignore[arg-type]
    world.worker.script = lambda submit, choice: bad if choice == 1 else good
    found = await events(world, n=3)
    assert text_of(found, 1) == (f"{CLEAN}this is[cut]", "content_filter")
    assert text_of(found, 0) == text_of(found, 2) == (CLEAN * 2, "stop")
    whole = (await chat(world, n=3)).json()["choices"]
    assert [c["finish_reason"] for c in whole] == ["stop", "content_filter", "stop"]
    body = {"model": "base", "prompt": ["a", "b"], "n": 2, "max_tokens": 64}
    choices = (await world.http.post("/v1/completions", json=body)).json()["choices"]
    assert [c["text"] for c in choices] == [CLEAN * 2, "[cut]"] * 2


async def test_ids_and_log_probabilities_do_not_tell_what_is_held_back(world: World) -> None:
    world.worker.script = say(BAD)
    for stream in (False, True):
        body = {"return_token_ids": True, "stream": stream, "max_tokens": 64}
        found = await events(world, **body) if stream else [(await chat(world, **body)).json()]
        assert not any(choice.get("token_ids") for event in found for choice in event["choices"])
    world.worker.script = say(CLEAN)
    found = await events(world, return_token_ids=True)
    ids = [token for event in found for choice in event["choices"] for token in choice.get("token_ids") or ()]
    assert shipped_tokenizer().decode(ids) == CLEAN


async def test_a_classifier_refuses_input_and_ends_output(world: World, classifier: ScriptedHttp) -> None:
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.8, classifier_block_chars=32)
    vile = [{"role": "user", "content": "something vile"}]
    assert code_of(await chat(world, messages=vile)) == (400, "content_filter", "messages")
    asked = classifier.asked[0]
    assert (asked.path, asked.headers["authorization"]) == ("/v1/moderations", "Bearer sekret")
    assert asked.body == {"input": "something vile", "model": "judge"}
    world.worker.script = say(CLEAN + "and now it gets vile and more so")
    found = await events(world)
    text, reason = text_of(found)
    assert reason == "content_filter"
    assert "vile" not in text
    assert text.startswith(CLEAN[:32])
    assert (await chat(world)).json()["choices"][0]["message"]["content"] == "[removed by the content policy]"
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.95)
    assert text_of(await events(world, messages=vile))[1] == "stop", "below the threshold"


async def slow(asked: Asked, reply: Reply) -> None:
    await asyncio.Event().wait()


async def garbage(asked: Asked, reply: Reply) -> None:
    bodies = [b"<html>", b"{}", b'{"results": 7}', b'{"results": []}', b'{"results":[{"category_scores":{"a":"x"}}]}']
    number = int(asked.body["input"].rpartition(" ")[2]) if asked.body["input"][-1].isdigit() else 0
    await reply.send(raw=bodies[number % len(bodies)])


async def failing(asked: Asked, reply: Reply) -> None:
    await reply.send(scores(0.0), status=500)


async def out_of_range(asked: Asked, reply: Reply) -> None:
    await reply.send(scores(0.1, 7))


@pytest.mark.parametrize("script", [slow, garbage, failing, out_of_range])
async def test_without_a_verdict_the_policy_lets_nothing_pass_or_everything(
    world: World, classifier: ScriptedHttp, script: Any
) -> None:
    classifier.script = script
    closed = ContentPolicy(classifier_threshold=0.5, checks_output=False)
    world.content.policies["rules"] = closed
    for number in range(5 if script is garbage else 1):
        answer = await chat(world, messages=[{"role": "user", "content": f"number {number}"}])
        assert code_of(answer) == (503, "content_check_unavailable", None)
        assert answer.headers["retry-after"]
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.5, checks_input=False)
    assert code_of(await chat(world)) == (503, "content_check_unavailable", None)
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.5, fails_open=True)
    assert (await chat(world)).json()["choices"][0]["message"]["content"] == "hello world"
    assert world.metric("stratos_content_unchecked_total", tenant="one", side="input", outcome="passed") == 1
    assert world.metric("stratos_content_unchecked_total", tenant="one", side="output", outcome="refused") == 1


async def test_texts_of_a_resident_tenant_go_to_no_classifier_outside(world: World, classifier: ScriptedHttp) -> None:
    world.keys.change_plan(KEY, resident_only=True)
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.5)
    assert code_of(await chat(world)) == (503, "content_check_unavailable", None)
    world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.5, fails_open=True)
    assert (await chat(world)).status_code == 200
    assert classifier.asked == []


async def test_a_resident_classifier_may_be_asked_for_everyone(classifier: ScriptedHttp) -> None:
    policies = {"classifier_url": f"{classifier.url}/v1/moderations", "classifier_is_resident": True}
    async with gateway_world(policies=policies) as world:
        world.content.policies["rules"] = ContentPolicy(classifier_threshold=0.5)
        world.keys.change_plan(KEY, content_policy="rules", resident_only=True)
        assert (await chat(world, messages=[{"role": "user", "content": "vile"}])).status_code == 400
        assert len(classifier.asked) == 1


async def test_a_classifier_that_fails_in_mid_stream_ends_the_stream_with_an_error(
    world: World, classifier: ScriptedHttp
) -> None:
    async def first_only(asked: Asked, reply: Reply) -> None:
        await reply.send(scores(0.0), status=200 if len(classifier.asked) == 1 else 500)

    classifier.script = first_only
    world.content.policies["rules"] = ContentPolicy(
        classifier_threshold=0.5, checks_input=False, classifier_block_chars=32
    )
    world.worker.script = say(CLEAN * 3)
    found = await events(world, max_tokens=200)
    assert found[-1]["error"]["code"] == "content_check_unavailable"
    await world.wait_idle()


async def test_a_policy_that_is_not_known_here_lets_nothing_pass(world: World) -> None:
    world.keys.change_plan(KEY, content_policy="missing")
    assert code_of(await chat(world)) == (503, "content_check_unavailable", None)


SUPPORT = PromptTemplate(
    versions={
        1: PromptVersion(messages=(PromptMessage(role="system", text="Help with {{ product }}."),)),
        3: PromptVersion(
            messages=(
                PromptMessage(role="system", text="Help {{ name }}."), PromptMessage(role="user", text="{{ ask }}"),
            ),
            defaults={"name": "all"},
        ),
    }
)  # fmt: skip


async def test_a_template_stands_before_the_requests_own_messages(world: World) -> None:
    world.content.templates["one", "support"] = SUPPORT
    hi = [{"role": "user", "content": "hi"}]
    wanted = {
        1: ({"product": "tea"}, [{"role": "system", "content": "Help with tea."}]),
        3: ({"ask": "why?"}, [{"role": "system", "content": "Help all."}, {"role": "user", "content": "why?"}]),
    }
    for number, (variables, rendered) in wanted.items():
        for version in (number, str(number)):
            prompt = {"id": "support", "version": version, "variables": variables}
            assert (await chat(world, prompt=prompt)).status_code == 200
        assert (await chat(world, messages=[*rendered, *hi])).status_code == 200
        assert len({tuple(submit.prompt_ids) for submit in world.worker.submits}) == 1
        world.worker.submits.clear()
    newest = {"model": "base", "prompt": {"id": "support", "variables": {"ask": "bad stuff"}}}
    assert code_of(await world.http.post("/v1/chat/completions", json=newest)) == (400, "content_filter", "messages")


async def test_a_template_is_a_completions_prompt(world: World) -> None:
    world.content.templates["", "greet"] = PromptTemplate(versions={1: PromptVersion(text="Hello {{ name }}")})
    body = {"model": "base", "max_tokens": 2, "prompt": {"id": "greet", "variables": {"name": "Bo"}}}
    assert (await world.http.post("/v1/completions", json=body)).status_code == 200
    plain = {**body, "prompt": "Hello Bo"}
    assert (await world.http.post("/v1/completions", json=plain)).status_code == 200
    first, second = world.worker.submits
    assert list(first.prompt_ids) == list(second.prompt_ids)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ({"id": "nope"}, (404, "prompt_not_found", "prompt.id")),
        ({"id": "support", "version": 2}, (404, "prompt_not_found", "prompt.version")),
        ({"id": "support", "version": 1}, (400, "invalid_prompt_variables", "prompt.variables.product")),
        (
            {"id": "support", "version": 1, "variables": {"product": 1, "x": 2}},
            (400, "invalid_prompt_variables", "prompt.variables.x"),
        ),
        (
            {"id": "support", "version": 1, "variables": {"product": "x" * 70_000}},
            (400, "prompt_too_large", "prompt.variables"),
        ),
        ({"id": "support", "version": "one"}, (400, "invalid_request", "prompt.version")),
        ({"id": "support", "version": True}, (400, "invalid_request", "prompt.version")),
        ({"id": 7}, (400, "invalid_request", "prompt.id")),
        ({"id": "support", "variables": []}, (400, "invalid_request", "prompt.variables")),
        ({"id": "support", "extra": 1}, (400, "unknown_parameter", "prompt.extra")),
        ({"id": "greet"}, (400, "invalid_request", "prompt.id")),
        ("support", (400, "unknown_parameter", "prompt")),
    ],
)
async def test_what_is_wrong_with_a_prompt_is_said(
    world: World, prompt: object, expected: tuple[int, str, str]
) -> None:
    world.content.templates["one", "support"] = SUPPORT
    world.content.templates["", "greet"] = PromptTemplate(versions={1: PromptVersion(text="Hello")})
    assert code_of(await chat(world, prompt=prompt)) == expected
    other = await world.http.post(
        "/v1/chat/completions",
        json={**CHAT, "prompt": {"id": "support"}},
        headers={"authorization": f"Bearer {OTHER_KEY}"},
    )
    assert code_of(other) == (404, "prompt_not_found", "prompt.id"), "it is that of another tenant"
