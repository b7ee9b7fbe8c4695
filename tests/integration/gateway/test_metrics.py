"""Counters of a gateway against what its clients counted themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratos.common.errors import QueueTimeout
from tests.support.waiting import eventually
from tests.support.worlds.gateway_world import World, gateway_world, make_adapter, say

BODY = {"model": "base", "prompt": "x", "max_tokens": 30}
LABELS = {"model": "base", "class": "1"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        yield made


async def ask(world: World, **body: Any) -> dict[str, Any]:
    answer = await world.http.post("/v1/completions", json={**BODY, **body})
    return {"status": answer.status_code, **answer.json().get("usage", {})}


def outcomes(world: World) -> Counter[str]:
    names = "finished", "refused", "failed", "left"
    return Counter(
        {name: int(world.metric("stratos_request_outcomes_total", **LABELS, outcome=name)) for name in names}
    )


async def test_every_counter_equals_the_clients_own_count(world: World) -> None:
    world.registry.adapters = {"": [make_adapter("shared")]}
    answers = [await ask(world, n=2) for _ in range(3)]
    answers.append(await ask(world, model="shared"))
    world.worker.busy_times = 1
    answers.append(await ask(world))  # placed twice, one request
    refused = [await ask(world, model="gpt-9"), await ask(world, temprature=1)]
    world.router.errors = [QueueTimeout("no room")]
    failed = await ask(world)
    await world.wait_idle()
    assert [answer["status"] for answer in (*answers, *refused, failed)] == [200] * 5 + [404, 400, 503]
    assert +outcomes(world) == {"finished": 5, "refused": 2, "failed": 1}
    assert world.metric("stratos_request_duration_seconds_count", **LABELS) == 8
    assert world.metric("stratos_request_ttft_seconds_count", **LABELS) == 5
    num_output = sum(answer["completion_tokens"] for answer in answers)
    assert world.metric("stratos_output_tokens_total", tenant="one", **LABELS) == num_output
    num_gaps = num_output - 3 * 2 - 2  # of n tokens of a choice
    assert world.metric("stratos_request_itl_seconds_count", **LABELS) == num_gaps
    num_prompt = sum(answer["prompt_tokens"] for answer in answers)
    unplaced = answers[0]["prompt_tokens"]  # the failed one's prompt was taken in, too
    assert world.metric("stratos_prompt_tokens_total", tenant="one", **LABELS) == num_prompt + unplaced
    assert world.metric("stratos_request_prompt_tokens_sum", **LABELS) == num_prompt + unplaced
    assert world.metric("stratos_request_output_tokens_sum", **LABELS) == num_output
    assert world.metric("stratos_request_output_tokens_count", **LABELS) == 6


async def test_tokens_count_while_their_stream_runs_and_one_that_breaks_is_no_success(world: World) -> None:
    world.worker.script = say("one two three four five six seven eight nine ten")
    world.worker.hang_after = 6
    body = {**BODY, "stream": True, "logprobs": 1}
    num_tokens = 0
    async with world.http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                num_tokens += len(json.loads(line[6:])["choices"][0]["logprobs"]["tokens"])
            if num_tokens == 6:
                break
        assert world.metric("stratos_output_tokens_total", tenant="one", **LABELS) == 6
    await eventually(lambda: outcomes(world)["left"] == 1, "the client left")
    assert +outcomes(world) == {"left": 1}
