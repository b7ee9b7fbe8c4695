"""Token routes of a whole gateway: keys, limits, content policies, blocks and places act on them as on any other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from stratos.core.tenancy.content import ContentPolicy
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import World, gateway_world

TEXT = "some bad stuff"
ROUTES = pytest.mark.parametrize("route", ["/tokenize", "/detokenize"])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def ask(world: World, route: str, key: str = KEY) -> httpx.Response:
    body = {"prompt": TEXT} if route == "/tokenize" else {"tokens": shipped_tokenizer().encode(TEXT)}
    return await world.http.post(route, json=body, headers={"authorization": f"Bearer {key}"})


@ROUTES
async def test_a_content_policy_reads_what_is_asked_about(world: World, route: str) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("bad stuff",)})
    assert (await ask(world, route)).status_code == 200
    world.keys.change_plan(KEY, content_policy="rules")
    answer = await ask(world, route)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")


@ROUTES
async def test_it_takes_a_request_of_the_limits_and_no_tokens(world: World, route: str) -> None:
    world.keys.change_plan(KEY, requests_per_min=2, tokens_per_min=10, burst_s=60)
    answers = [await ask(world, route) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[1].headers["x-ratelimit-remaining-tokens"] == "10"
    assert "retry-after" in answers[2].headers


@ROUTES
async def test_keys_and_blocks_act(world: World, route: str) -> None:
    assert (await ask(world, route, "sk-unknown")).status_code == 401
    world.blocks.models.add("base")
    assert (await ask(world, route)).status_code == 403
    assert world.placed == 0


async def test_a_ping_is_the_deep_probe(world: World) -> None:
    answer = await world.http.get("/ping", headers={"authorization": ""})
    assert (answer.status_code, answer.content) == (200, b"")
