"""Fallback chains at a gateway: the next model is asked where one has no room, before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratos.common.errors import BadRequest, Overloaded, QueueTimeout, StratosError
from tests.support.worlds.gateway_world import World, gateway_world, say


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def body_of(world: World, **more: Any) -> dict[str, Any]:
    """A chain of a model and its pinned revision, which is a further name of it."""
    [entry] = (await world.http.get("/v1/models")).json()["data"]
    return {"models": ["base", f"base@{entry['revision'][:8]}"], "max_tokens": 2, **more}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}),
    ],
)
async def test_the_next_model_answers_where_one_sheds(
    world: World, path: str, prompt: dict[str, Any], stream: bool
) -> None:
    body = await body_of(world, **prompt, stream=stream)
    if path == "/v1/responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    world.worker.tokens = say("ab")
    world.router.errors = [Overloaded("full")]
    answer = await world.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get_list("x-stratos-model") == [body["models"][1]]
    assert answer.headers["x-stratos-model-refused"] == "base=overloaded"
    assert len(answer.headers.get_list("x-ratelimit-limit-requests")) <= 1
    assert body["models"][1] in answer.text
    first = await world.http.post(path, json=body)
    assert first.headers["x-stratos-model"] == "base"
    assert "x-stratos-model-refused" not in first.headers


async def test_all_that_refuse_are_named_with_the_last_answer(world: World) -> None:
    body = await body_of(world, prompt="x")
    world.router.errors = [Overloaded("full"), QueueTimeout("none")]
    answer = await world.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers["x-stratos-model-refused"] == f"base=overloaded, {body['models'][1]}=queue_timeout"
    assert "x-stratos-model" not in answer.headers


async def test_an_error_of_the_request_is_told_by_the_first_model(world: World) -> None:
    body = await body_of(world, prompt="x")
    world.router.errors = [BadRequest("no")]
    assert (await world.http.post("/v1/completions", json=body)).status_code == 400
    assert not world.router.errors


@pytest.mark.parametrize(
    ("more", "headers", "status", "param"),
    [
        ({"models": ["base", "none"]}, {}, 404, "models"),
        ({"models": ["base", "base"]}, {}, 400, "models"),
        ({"models": []}, {}, 400, "models"),
        ({"continuation_token": "x"}, {}, 400, "models"),
    ],
)
async def test_bad_chains_are_refused_before_a_model_is_asked(
    world: World, more: dict[str, Any], headers: dict[str, str], status: int, param: str
) -> None:
    error: StratosError = Overloaded("full")
    world.router.errors = [error]
    body = {**await body_of(world, prompt="x"), **more}
    answer = await world.http.post("/v1/completions", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert "none" not in str(more) or "none" in answer.json()["error"]["message"]
    assert world.router.errors == [error]
