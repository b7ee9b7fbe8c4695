"""Recorded answers of models that a chain or rules chose: they go on at any gateway, with the model that began them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import Overloaded
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, code_of, contents, num_submits, read, stream_worlds, texts

ROUTES = list(ASKED)
RULES = {"default": "base", "rules": [{"name": "all", "models": ["base", "other"]}]}


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """Both serve ``base``, its alias ``other``, and ``auto``; a comment would bind a stream to its first model."""
    async with stream_worlds(redis_url, tmp_path, keepalive_s=0.0, lease_s=600.0) as found:
        assert (await found[0].call("PUT", "/aliases/other", {"targets": [{"model": "base"}]})).is_success
        assert (await found[0].call("PUT", "/choices/auto", RULES)).is_success
        for world in found:
            await eventually(lambda world=world: _knows_auto(world), "it has read both")
        yield found


async def _knows_auto(world: AdminWorld) -> bool:
    headers = {"authorization": f"Bearer {world.keys['user']}"}
    return (await world.public.get("/v1/models/auto", headers=headers)).is_success


def body(path: str, **more: Any) -> dict[str, Any]:
    return {"models": ["base", "other"], "stream": True, "seed": 5, **ASKED[path], **more}


def auto(path: str) -> dict[str, Any]:
    return {"model": "auto", "stream": True, "seed": 5, **ASKED[path]}


async def ask(world: AdminWorld, path: str, given: dict[str, Any], most: int = 0, **headers: str) -> Read:
    found = await read(world, "POST", path, given, most=most, **headers)
    assert found.status == 200, found.events
    return found


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("make", [body, auto])
async def test_the_rest_of_an_answer_is_the_chosen_models_at_every_gateway(
    worlds: list[AdminWorld], path: str, make: Any
) -> None:
    one, two = worlds
    expected = contents(await ask(one, path, {**body(path), "models": ["other"]}))
    one.worker.step_s, one.router.errors = 0.02, [Overloaded("full")]
    begun = await ask(one, path, make(path), most=3, idempotency_key="cut")
    assert begun.headers["x-stratos-model"] == "other"
    rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
    assert rest.status == 200, rest.events
    assert contents(begun, rest) == expected


@pytest.mark.parametrize("make", [body, auto])
async def test_a_key_gets_the_answer_that_it_has_whatever_would_be_chosen_now(
    worlds: list[AdminWorld], make: Any
) -> None:
    one, two = worlds
    path = "/v1/chat/completions"
    one.router.errors = [Overloaded("full")]
    first = await ask(one, path, make(path), idempotency_key="k")
    assert first.headers["x-stratos-model"] == "other"
    for world in (one, two):  # "base" has room again, and is the first one
        again = await ask(world, path, make(path), idempotency_key="k")
        assert texts(again) == texts(first)
        assert (again.headers["x-stratos-model"], again.headers["idempotent-replayed"]) == ("other", "true")
    assert num_submits(worlds) == 1
    assert code_of(await read(two, "POST", path, {**make(path), "seed": 6}, idempotency_key="k"))[0] == 422
    assert (await one.call("DELETE", "/choices/auto")).is_success
    again = await ask(two, path, make(path), idempotency_key="k") if make is body else first
    assert texts(again) == texts(first)


async def test_a_key_that_was_refused_is_bound_to_no_model(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    path = "/v1/completions"
    one.router.errors = [Overloaded("full"), Overloaded("full")]
    refused = await read(one, "POST", path, body(path), idempotency_key="k")
    assert refused.status == 503, refused.events
    answered = await ask(two, path, body(path), idempotency_key="k")
    assert answered.headers["x-stratos-model"] == "base"
