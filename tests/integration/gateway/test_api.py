"""The OpenAI API as the official SDK sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from stratos.common.errors import DependencyDown
from stratos.core.cache_changes import CacheLayout
from tests.support.reference.shipped_model import base_digest, shipped_tokenizer
from tests.support.waiting import eventually
from tests.support.worlds.fleet_samples import IDENTITY
from tests.support.worlds.gateway_world import END_ID, World, gateway_world, make_adapter, say

TEXT = "def add(a, b):\n    return a + b  # é \U0001f600"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        made.worker.script = say(TEXT)
        yield made


def chat(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "base", "messages": [{"role": "user", "content": content}], **more}


async def test_chat_answers_whole_and_streamed_alike(world: World) -> None:
    world.worker.cached_tokens = 3
    whole = await world.openai.chat.completions.create(**chat())
    choice = whole.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(world.worker.submits[0].prompt_ids)
    assert whole.usage.completion_tokens == len(shipped_tokenizer().encode_plain(TEXT)) + 1
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 3

    stream = await world.openai.chat.completions.create(**chat(), stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


async def test_usage_chunk_only_when_asked(world: World) -> None:
    stream = await world.openai.completions.create(model="base", prompt="x", stream=True)
    assert all([chunk.choices and chunk.usage is None async for chunk in stream])


async def test_completion_prompts_of_every_kind(world: World) -> None:
    for prompt, number in (("a b", 1), (["a", "b c"], 2), ([40, 41], 1), ([[40], [41, 42]], 2)):
        world.worker.submits.clear()
        answer = await world.openai.completions.create(model="base", prompt=prompt, max_tokens=400)  # type: ignore[arg-type]
        assert [c.text for c in answer.choices] == [TEXT] * number
        assert [c.index for c in answer.choices] == list(range(number))
    assert sorted(tuple(s.prompt_ids) for s in world.worker.submits) == [(40,), (41, 42)]


async def test_n_choices_interleave_by_index(world: World) -> None:
    world.worker.script = lambda submit, choice: [*shipped_tokenizer().encode_plain(f"choice {choice}"), END_ID]
    answer = await world.openai.completions.create(model="base", prompt=["p", "q"], n=2)
    assert [c.text for c in answer.choices] == ["choice 0", "choice 1"] * 2
    texts = ["", "", "", ""]
    async for chunk in await world.openai.completions.create(model="base", prompt=["p", "q"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["choice 0", "choice 1"] * 2


async def test_stop_string_trims_cancels_and_drops_later_tokens(world: World) -> None:
    answer = await world.openai.chat.completions.create(
        **chat(), stop=[" + b"], n=1, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].message.content == "def add(a, b):\n    return a"
    assert answer.choices[0].finish_reason == "stop"
    ids = answer.choices[0].token_ids  # type: ignore[attr-defined]
    assert shipped_tokenizer().decode(ids) == "def add(a, b):\n    return a + b"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids)
    await eventually(lambda: [list(c.choice_indexes) for c in world.worker.cancels] == [[0]], "the worker was told")
    kept = await world.openai.chat.completions.create(
        **chat(), stop=" + b", extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].message.content == "def add(a, b):\n    return a + b"


async def test_length_ends_a_choice(world: World) -> None:
    answer = await world.openai.completions.create(model="base", prompt="x", max_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


async def test_chat_logprobs(world: World) -> None:
    answer = await world.openai.chat.completions.create(**chat(), logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert b"".join(bytes(e.bytes or ()) for e in logprobs.content[:-1]).decode() == TEXT
    assert all(len(e.top_logprobs) == 2 and e.logprob == -0.5 for e in logprobs.content)
    none_on_top = await world.openai.chat.completions.create(**chat(), logprobs=True)
    assert none_on_top.choices[0].logprobs is not None
    assert none_on_top.choices[0].logprobs.content is not None
    assert none_on_top.choices[0].logprobs.content[0].top_logprobs == []


async def test_completion_logprobs_and_offsets(world: World) -> None:
    world.worker.script = say("alpha beta gamma")
    answer = await world.openai.completions.create(model="base", prompt="x", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    text = answer.choices[0].text
    for token, offset in zip(logprobs.tokens[:-1], logprobs.text_offset[:-1], strict=True):
        assert text[offset : offset + len(token)] == token
    streamed = [
        c async for c in await world.openai.completions.create(model="base", prompt="x", logprobs=1, stream=True)
    ]
    offsets = [o for c in streamed for o in c.choices[0].logprobs.text_offset]  # type: ignore[union-attr]
    assert offsets == logprobs.text_offset


async def test_token_ids_of_prompt_and_output(world: World) -> None:
    expected = [*shipped_tokenizer().encode_plain(TEXT), END_ID]
    body = chat(return_token_ids=True)
    whole = (await world.http.post("/v1/chat/completions", json=body)).json()
    assert whole["choices"][0]["token_ids"] == expected
    assert whole["prompt_token_ids"] == list(world.worker.submits[0].prompt_ids)
    stream = await world.openai.completions.create(
        model="base", prompt=[40, 41], max_tokens=400, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [c.choices[0].model_dump() async for c in stream]
    assert [i for c in chunks for i in c["token_ids"]] == expected
    assert chunks[0]["prompt_token_ids"] == [40, 41]
    assert all("prompt_token_ids" not in c for c in chunks[1:])


async def test_echo_puts_the_prompt_first(world: World) -> None:
    answer = await world.openai.completions.create(model="base", prompt=["one ", "two "], echo=True, max_tokens=400)
    assert [c.text for c in answer.choices] == ["one " + TEXT, "two " + TEXT]
    chunks = [
        c async for c in await world.openai.completions.create(model="base", prompt="one ", echo=True, stream=True)
    ]
    assert chunks[0].choices[0].text.startswith("one ")
    assert sum("one " in c.choices[0].text for c in chunks) == 1


async def test_parameters_reach_the_worker(world: World) -> None:
    await world.openai.chat.completions.create(
        **chat(),
        temperature=0.5,
        top_p=0.9,
        seed=-7,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        max_completion_tokens=77,
        logit_bias={"5": 2},
        extra_body={"top_k": 3, "min_p": 0.125, "min_tokens": 2, "stop_token_ids": [9], "repetition_penalty": 1.5},
    )
    submit = world.worker.submits[0]
    params = submit.sampling
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 3, 0.125)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.25, -0.5, 1.5)
    assert (params.max_tokens, params.min_tokens, list(params.stop_token_ids)) == (77, 2, [9])
    assert dict(params.logit_bias) == {5: 2.0}
    assert submit.seed == 2**64 - 7
    assert (submit.terms.tenant, submit.terms.cache_salt, submit.terms.priority_class) == ("one", b"one", 1)
    assert submit.model_digest == base_digest()


async def test_a_missing_seed_is_drawn_once_per_request(world: World) -> None:
    for _ in range(2):
        await world.openai.chat.completions.create(**chat())
    assert len({s.seed for s in world.worker.submits}) == 2


async def test_models_and_adapters(world: World) -> None:
    world.registry.adapters = {"": [make_adapter("shared")], "two": [make_adapter("secret", tenant="two")]}
    models = {m.id: m async for m in world.openai.models.list()}
    assert set(models) == {"base", "shared"}
    assert models["shared"].parent == "base"  # type: ignore[attr-defined]
    assert (await world.openai.models.retrieve("shared")).id == "shared"
    await world.openai.chat.completions.create(**{**chat(), "model": "shared"})
    submit = world.worker.submits[0]
    assert (submit.terms.adapter.digest, submit.terms.adapter.uri) == ("digest-of-shared", "adapters/shared")
    for name in ("secret", "nothing"):
        with pytest.raises(openai.NotFoundError) as caught:
            await world.openai.chat.completions.create(**{**chat(), "model": name})
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
    assert len(world.worker.submits) == 1


async def test_adapters_outlive_an_outage_and_never_become_the_base(world: World) -> None:
    world.registry.adapters = {"": [make_adapter("shared"), make_adapter("strange", base_model_digest="f" * 64)]}
    world.registry.error = DependencyDown("gone")
    await world.openai.chat.completions.create(**{**chat(), "model": "shared"})
    assert world.worker.submits[-1].terms.adapter.digest == "digest-of-shared"
    with pytest.raises(openai.InternalServerError) as caught:
        await world.openai.chat.completions.create(**{**chat(), "model": "unseen"})
    assert caught.value.code == "dependency_unavailable"
    with pytest.raises(openai.NotFoundError):  # an adapter of another base model
        await world.openai.chat.completions.create(**{**chat(), "model": "strange"})
    await world.openai.chat.completions.create(**chat())
    assert len(world.worker.submits) == 2


async def test_the_router_hears_what_requests_have_in_common_and_never_the_text(world: World) -> None:
    world.router.cache_layout = CacheLayout(IDENTITY, 4)
    for more in ({}, {"user": "u"}, {"user": "u", "prompt_cache_key": "k"}, {"prompt_cache_key": "k"}, {"user": 5}):
        answer = await world.http.post("/v1/chat/completions", json=chat("a long enough question", **more))
        assert answer.status_code == 200, answer.text
    keys = [request.session_key for request in world.router.requests]
    assert keys[0] == keys[4] == 0
    assert keys[2] == keys[3] != keys[1]
    names = [request.block_hashes for request in world.router.requests]
    assert names[0] == ()
    assert names[1]
    assert len(set(names[1:])) == 1


async def test_a_lenient_gateway_ignores_what_is_unknown_and_names_it() -> None:
    async with gateway_world(http={"lenient": True}) as world:
        world.worker.script = say(TEXT)
        tool = {"type": "function", "function": {"name": "f", "oops": 1}}
        unknown = {"no\r\nx-bad": 1, **{f"field{number}": number for number in range(30)}}
        bodies: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": chat(tools=[tool], metadata={"a": "b"}, store=True, **unknown),
            "/v1/messages": {**chat(), "max_tokens": 9, "new": 1},
            "/v1/responses": {"model": "base", "input": "hi", "new": 1, "text": {"new": 1}},
            "/tokenize": {"prompt": "hi", "new": 1},
        }
        told = {}
        for path, body in bodies.items():
            answer = await world.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            told[path] = answer.headers["x-stratos-ignored"].split(", ")
        assert told["/v1/chat/completions"][:4] == ["store", "tools[0].function.oops", "no??x-bad", "field0"]
        assert len(told["/v1/chat/completions"]) == 1 + 20
        assert (told["/v1/messages"], told["/tokenize"]) == (["new"], ["new"])
        assert sorted(told["/v1/responses"]) == ["new", "text.new"]
        refused = await world.http.post("/v1/chat/completions", json=chat(audio={"voice": "x"}))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio"), "it is known"
        refused = await world.http.post("/v1/chat/completions", json=chat(guided_choice=["yes", "no"]))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_choice"), "it constrains"
    async with gateway_world() as strict:
        answer = await strict.http.post("/v1/chat/completions", json=chat(new=1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
