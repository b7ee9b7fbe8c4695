"""The tenant's content policy as /v1/moderations, through OpenAI's SDK and over plain HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest

from stratos.core.tenancy.content import ContentPolicy
from stratos_gateway.moderation.route import judged_by_s
from tests.support.fakes.scripted_http import Asked, Reply, scripted_http
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world

RULES = ContentPolicy(words={"foul": ("bad stuff",)}, patterns={"digits": "[0-9]{6}"})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        made.content.policies["rules"] = RULES
        made.keys.change_plan(KEY, content_policy="rules")
        yield made


async def moderate(world: World, given: Any) -> list[dict[str, bool]]:
    answer = await world.openai.moderations.create(input=given, model="omni-moderation-latest")
    assert answer.model == "content-policy/rules"
    found = [result.model_dump(by_alias=True)["categories"] for result in answer.results]
    assert [result.flagged for result in answer.results] == [any(c.values()) for c in found]
    return [{rule: categories[rule] for rule in ("foul", "digits")} for categories in found]


async def test_every_rule_is_told_for_every_text_and_nothing_is_refused(world: World) -> None:
    assert await moderate(world, "some bad  stuff and 123456 and 654321") == [{"foul": True, "digits": True}]
    parts = [{"type": "text", "text": "123456"}, {"type": "text", "text": "fine"}]
    assert await moderate(world, parts) == [{"foul": False, "digits": True}, {"foul": False, "digits": False}]
    assert await moderate(world, ["", "x" * 30_000 + " bad stuff"]) == [
        {"foul": False, "digits": False},
        {"foul": True, "digits": False},
    ]


async def test_the_classifier_has_a_category_of_its_own() -> None:
    async def script(asked: Asked, reply: Reply) -> None:
        await reply.send({"results": [{"category_scores": {"a": 0.9 if "vile" in asked.body["input"] else 0.1}}]})

    async with (
        scripted_http(script) as classifier,
        gateway_world(policies={"classifier_url": f"{classifier.url}/v1/moderations"}) as world,
    ):
        world.content.policies["judged"] = ContentPolicy(classifier_threshold=0.5)
        world.keys.change_plan(KEY, content_policy="judged")
        answer = (await world.http.post("/v1/moderations", json={"input": ["vile", "fine"]})).json()
        assert [result["category_scores"] for result in answer["results"]] == [{"classifier": 1.0}, {"classifier": 0.0}]


async def test_some_texts_are_judged_at_once_and_too_many_are_refused_by_name_for_good() -> None:
    hangs, num_open, most_open = asyncio.Event(), 0, 0

    async def script(asked: Asked, reply: Reply) -> None:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        if asked.body["input"] == "4":
            await hangs.wait()
        await asyncio.sleep(0)
        num_open -= 1
        await reply.send({"results": [{"category_scores": {"a": 0.9 if asked.body["input"] == "2" else 0.1}}]})

    async with (
        scripted_http(script) as classifier,
        gateway_world(policies={"classifier_url": f"{classifier.url}/v1", "classifier_timeout_s": 60.0}) as world,
    ):
        world.content.policies["judged"] = ContentPolicy(classifier_threshold=0.5)
        world.keys.change_plan(KEY, content_policy="judged")
        first = await world.http.post("/v1/moderations", json={"input": [*"0123"]})
        assert [result["flagged"] for result in first.json()["results"]] == [False, False, True, False]
        assert 1 < most_open <= 4
        headers = {"x-stratos-deadline-ms": "1000"}
        refused = await world.http.post("/v1/moderations", json={"input": [*"01234"]}, headers=headers)
        hangs.set()
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input"), "SDKs do not try it again"
    assert "4 of 5 texts" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("num_texts", "until_s"), [(1, 60.0), (2048, 571.75), (20_000, 3600.0)])
def test_more_texts_have_more_time(num_texts: int, until_s: float) -> None:
    assert judged_by_s(cast("Any", SimpleNamespace(deadline_s=60.0, end_s=3600.0)), num_texts) == until_s


async def test_without_a_policy_there_is_no_verdict(world: World) -> None:
    world.keys.change_plan(KEY, content_policy="")
    with pytest.raises(openai.BadRequestError) as caught:
        await world.openai.moderations.create(input="x")
    assert caught.value.code == "unsupported_operation"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        ([5], "input"),
        (["a"] * 2049, "input"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "input[0]"),
        ([{"type": "text", "text": 5}], "input[0].text"),
    ],
)
async def test_what_is_no_text_is_refused_by_name(world: World, given: Any, param: str) -> None:
    answer = await world.http.post("/v1/moderations", json={"input": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_it_takes_a_request_of_the_limits(world: World) -> None:
    world.keys.change_plan(KEY, requests_per_min=1, burst_s=60)
    answers = [await world.http.post("/v1/moderations", json={"input": "x"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
