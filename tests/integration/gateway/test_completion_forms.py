"""Fields that change what is shown or what the model is given: echoes alone, the best of several, cut prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_world import World, gateway_world, say

PROMPT = "def value(x):"
WORDS = "one two three four five six seven eight nine ten eleven twelve"


async def post(world: World, route: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    response = await world.http.post(route, json={"model": "base", **body})
    assert response.status_code == 200, response.text
    return response.json()


async def refused(world: World, route: str = "/v1/completions", **body: Any) -> tuple[str, str | None]:
    response = await world.http.post(route, json={"model": "base", "prompt": "x", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["code"]


async def streamed(world: World, route: str, **body: Any) -> list[dict[str, Any]]:
    response = await world.http.post(route, json={"model": "base", "stream": True, **body})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_an_echo_alone_shows_the_prompt_and_its_log_probabilities() -> None:
    async with gateway_world() as world:
        answer = await post(world, prompt=PROMPT, echo=True, max_tokens=0, logprobs=1, return_token_ids=True)
        (choice,), ids = answer["choices"], shipped_tokenizer().encode_plain(PROMPT)
        assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == (PROMPT, "length", [])
        assert len(choice["logprobs"]["tokens"]) == len(ids)
        assert choice["logprobs"]["token_logprobs"] == [None, *(-place for place in range(1, len(ids)))]
        assert world.worker.submits[0].sampling.max_tokens == 1


async def test_an_echo_alone_is_streamed() -> None:
    async with gateway_world() as world:
        world.worker.script = say("never shown")
        events = await streamed(world, "/v1/completions", prompt=[PROMPT, "b"], echo=True, max_tokens=0)
        texts = {n: "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == n) for n in (0, 1)}
        assert texts == {0: PROMPT, 1: "b"}
        assert [e["choices"][0]["finish_reason"] for e in events].count("length") == 2


async def test_no_output_needs_an_echo() -> None:
    async with gateway_world() as world:
        assert await refused(world, max_tokens=0) == ("max_tokens", "invalid_request")
        assert await refused(world, max_tokens=False, echo=True) == ("max_tokens", "invalid_request")


async def test_the_best_of_several_choices_are_shown() -> None:
    async with gateway_world() as world:
        world.worker.script = lambda submit, choice: say(f"choice {choice}")(submit, choice)
        answer = await post(world, prompt=["a", "b"], n=2, best_of=3, echo=True)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [choice["text"][0] for choice in answer["choices"]] == ["a", "a", "b", "b"]
        assert all(choice["logprobs"] is None for choice in answer["choices"])
        num_each = len(shipped_tokenizer().encode_plain("choice 0")) + 1
        assert answer["usage"]["completion_tokens"] == 6 * num_each
        assert [len(submit.choices) for submit in world.worker.submits] == [3, 3]


async def test_the_best_of_fewer_or_of_a_stream_is_refused() -> None:
    async with gateway_world() as world:
        assert (await refused(world, n=2, best_of=1))[0] == "best_of"
        assert (await refused(world, best_of=2, stream=True))[0] == "best_of"
        assert (await refused(world, best_of=16, prompt=["x"] * 16))[0] == "best_of"


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("is_text", [True, False])
async def test_prompts_are_cut_to_a_length(side: str | None, is_text: bool) -> None:
    ids = shipped_tokenizer().encode(WORDS, add_special_tokens=is_text)
    prompt = WORDS if is_text else ids
    kept = ids[:5] if side == "right" else ids[-5:]
    async with gateway_world() as world:
        more = {} if side is None else {"truncation_side": side}
        answer = await post(world, prompt=prompt, truncate_prompt_tokens=5, echo=True, max_tokens=0, **more)
        assert list(world.worker.submits[0].prompt_ids) == kept
        assert answer["choices"][0]["text"] == shipped_tokenizer().decode(kept, skip_special=False)
        assert answer["usage"]["prompt_tokens"] == 5


async def test_conversations_are_cut_after_their_template() -> None:
    async with gateway_world() as world:
        messages = [{"role": "user", "content": WORDS}]
        await post(world, "/v1/chat/completions", messages=messages)
        await post(world, "/v1/chat/completions", messages=messages, truncate_prompt_tokens=7)
        whole, cut = (list(submit.prompt_ids) for submit in world.worker.submits)
        assert cut == whole[-7:]


async def test_a_prompt_that_is_too_long_is_cut_to_what_the_model_takes() -> None:
    text = "word " * 30_000
    async with gateway_world() as world:
        assert (await refused(world, prompt=text))[1] == "context_length_exceeded"
        await post(world, prompt=text, truncate_prompt_tokens=-1, max_tokens=20)
        await post(world, prompt=[7] * 30_000, truncate_prompt_tokens=-1, max_tokens=20)
        for submit in world.worker.submits:
            assert 100 < len(submit.prompt_ids) <= 4096
            assert submit.sampling.max_tokens == 20
        assert (await refused(world, truncate_prompt_tokens=100_000))[0] == "truncate_prompt_tokens"


async def test_a_side_needs_a_length() -> None:
    async with gateway_world() as world:
        assert (await refused(world, truncation_side="left"))[0] == "truncation_side"
        assert (await refused(world, truncation_side="middle", truncate_prompt_tokens=3))[0] == "truncation_side"
        assert (await refused(world, truncate_prompt_tokens=0))[0] == "truncate_prompt_tokens"


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_every_event_has_the_usage_so_far(route: str) -> None:
    prompt: dict[str, Any] = {"prompt": PROMPT}
    if "chat" in route:
        prompt = {"messages": [{"role": "user", "content": PROMPT}]}
    async with gateway_world() as world:
        hidden = next(token for token in shipped_tokenizer().special_tokens.values() if token != 4)
        world.worker.script = lambda submit, choice: [hidden, *say(WORDS)(submit, choice)]
        world.worker.step_s = 0.005
        options = {"include_usage": True, "continuous_usage_stats": True}
        *parts, last = await streamed(world, route, **prompt, stream_options=options, max_tokens=100)
        counts = [part["usage"]["completion_tokens"] for part in parts]
        assert counts == sorted(counts)
        assert len(set(counts)) > 3
        assert counts[0] == 0 or "chat" not in route, "the role has no tokens, not even one that shows nothing"
        assert counts[-1] == last["usage"]["completion_tokens"]
        for part in parts:
            usage = part["usage"]
            assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        param, _ = await refused(world, stream=True, stream_options={"continuous_usage_stats": True})
        assert param == "stream_options.continuous_usage_stats"


async def test_special_tokens_are_shown_where_they_are_wanted() -> None:
    special = shipped_tokenizer().special_tokens
    text, token = next((text, token) for text, token in special.items() if token != 4)
    async with gateway_world() as world:
        world.worker.script = lambda submit, choice: [token, *say("a")(submit, choice)]
        (hidden,) = (await post(world, prompt="x"))["choices"]
        (shown,) = (await post(world, prompt="x", skip_special_tokens=False))["choices"]
        assert (hidden["text"], shown["text"]) == ("a", text + "a")


async def test_a_prediction_is_ignored_by_name() -> None:
    async with gateway_world() as world:
        body = {"model": "base", "messages": [{"role": "user", "content": "x"}], "verbosity": "medium"}
        prediction = {"type": "content", "content": "hello"}
        answer = await world.http.post("/v1/chat/completions", json={**body, "prediction": prediction})
        assert answer.status_code == 200
        assert answer.headers["x-stratos-ignored"] == "prediction"
