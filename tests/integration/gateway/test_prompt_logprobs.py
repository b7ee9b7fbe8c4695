"""``echo`` with ``logprobs``, and ``prompt_logprobs``, through a real gateway; the worker says minus each place."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_world import World, gateway_world, say

PROMPT = "def value(é):"


@functools.cache
def prompt_ids() -> list[int]:
    return shipped_tokenizer().encode_plain(PROMPT)


def prompt_names() -> list[str]:
    return [shipped_tokenizer().token_text(i) for i in prompt_ids()]


async def post(world: World, route: str, **body: Any) -> dict[str, Any]:
    response = await world.http.post(route, json={"model": "base", **body})
    assert response.status_code == 200, response.text
    return response.json()


def offsets() -> list[int]:
    return [len(shipped_tokenizer().decode(prompt_ids()[:end]).rstrip("\ufffd")) for end in range(len(prompt_ids()))]


async def test_echo_puts_the_prompt_before_the_output() -> None:
    async with gateway_world() as world:
        world.worker.script = say(" x")
        (choice,) = (await post(world, "/v1/completions", prompt=PROMPT, echo=True, logprobs=2))["choices"]
        logprobs = choice["logprobs"]
        assert choice["text"] == PROMPT + " x"
        assert logprobs["tokens"][: len(prompt_ids())] == prompt_names()
        assert logprobs["token_logprobs"][: len(prompt_ids())] == [
            None,
            *(-place for place in range(1, len(prompt_ids()))),
        ]
        assert logprobs["top_logprobs"][0] is None
        first = {
            shipped_tokenizer().token_text(prompt_ids()[1] + 1): -0.25,
            shipped_tokenizer().token_text(prompt_ids()[1] + 2): -1.25,
            prompt_names()[1]: -1,
        }
        assert logprobs["top_logprobs"][1] == first
        assert logprobs["text_offset"][: len(prompt_ids())] == offsets()
        assert logprobs["text_offset"][len(prompt_ids())] == len(PROMPT)
        assert len({len(values) for values in logprobs.values()}) == 1
        assert "prompt_logprobs" not in choice


async def test_echo_streams_the_prompt_first_and_once() -> None:
    async with gateway_world() as world:
        world.worker.script, world.worker.step_s = say(" a b c d"), 0.01
        tokens: list[str] = []
        values: list[float | None] = []
        positions: list[int] = []
        stream = await world.openai.completions.create(
            model="base", prompt=PROMPT, echo=True, logprobs=0, stream=True, max_tokens=20
        )
        async for chunk in stream:
            logprobs = chunk.choices[0].logprobs
            tokens += logprobs.tokens
            values += logprobs.token_logprobs
            positions += logprobs.text_offset
        assert tokens[: len(prompt_ids()) + 1] == [*prompt_names(), " a"]
        assert values[: len(prompt_ids())] == [None, *(-place for place in range(1, len(prompt_ids())))]
        assert positions == sorted(positions)
        assert positions[len(prompt_ids())] == len(PROMPT)


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_prompt_logprobs_are_mapped_by_token_id(route: str) -> None:
    prompt = {"prompt": PROMPT} if route == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    async with gateway_world() as world:
        body = await post(world, route, **prompt, prompt_logprobs=1, n=2, return_token_ids=True)
        holders = body["choices"] if route == "/v1/completions" else [body]
        ids = holders[0]["prompt_token_ids"]
        for holder in holders:
            entries = holder["prompt_logprobs"]
            assert (entries[0], len(entries)) == (None, len(ids))
            for place, entry in enumerate(entries[1:], 1):
                text = shipped_tokenizer().token_text
                assert entry == {
                    str(ids[place]): {"logprob": -place, "rank": 3, "decoded_token": text(ids[place])},
                    str(ids[place] + 1): {"logprob": -0.25, "rank": 1, "decoded_token": text(ids[place] + 1)},
                }
        assert all(choice["logprobs"] is None for choice in body["choices"])


async def test_both_at_once_get_as_many_as_each_asked_for() -> None:
    async with gateway_world() as world:
        body = await post(world, "/v1/completions", prompt=PROMPT, echo=True, logprobs=0, prompt_logprobs=2)
        (choice,) = body["choices"]
        assert world.worker.submits[0].sampling.num_prompt_logprobs == 2
        assert len(choice["prompt_logprobs"][1]) == 3
        assert choice["logprobs"]["top_logprobs"][1] == {prompt_names()[1]: -1}


async def test_a_resumed_request_has_its_prompt_logprobs_already() -> None:
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.script = say(" a b c d e f")
        world.worker.die_after = 3
        (choice,) = (await post(world, "/v1/completions", prompt=PROMPT, prompt_logprobs=0, max_tokens=20))["choices"]
        assert [entry and list(entry) for entry in choice["prompt_logprobs"]] == [
            None,
            *([str(i)] for i in prompt_ids()[1:]),
        ]
        first, second = world.workers[0].submits[0], world.workers[1].submits[0]
        assert first.sampling.HasField("num_prompt_logprobs")
        assert not second.sampling.HasField("num_prompt_logprobs")


async def test_what_cannot_be_answered_is_refused() -> None:
    async with gateway_world() as world:
        cases: list[tuple[str, dict[str, Any]]] = [
            ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
            ("prompt_logprobs", {"prompt_logprobs": 20, "prompt": ["x " * 1500] * 10}),
            ("logprobs", {"logprobs": 20, "echo": True, "prompt": ["x " * 1500] * 10}),
        ]
        for param, body in cases:
            response = await world.http.post("/v1/completions", json={"model": "base", "prompt": "x", **body})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
