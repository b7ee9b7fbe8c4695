"""Tools in chat completions, through the official SDK: told to the model, found in its output, streamed."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from stratos.core.tenancy.content import ContentPolicy
from tests.support.reference.shipped_model import shipped_tokenizer
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import END_ID, World, gateway_world, say

ARGUMENTS = '{"city": "Z\u00fcrich", "days": [1, 2], "note": "\\"}{\\" \U0001f600"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TEXT = f'Let me look.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city <|end|>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
QUESTION = [{"role": "user", "content": "How is the weather?"}]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "base", "messages": QUESTION, "tools": [WEATHER, NOW], "max_tokens": 1000, **more}


@functools.cache
def call_ids() -> list[int]:
    return [*shipped_tokenizer().encode_plain(CALL), END_ID]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with gateway_world() as made:
        made.worker.script = say(TEXT)
        yield made


async def streamed(world: World, **more: Any) -> tuple[str, list[list[Any]], list[str]]:
    """Text, calls as [id, name, arguments] in the order of their index, finish reasons."""
    text, calls, reasons = "", [], []
    async for chunk in await world.openai.chat.completions.create(**chat(**more), stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                if call.id:
                    assert (call.index, call.type) == (len(calls), "function")
                    calls.append([call.id, call.function.name, ""])
                calls[call.index][2] += call.function.arguments or ""
    return text, calls, reasons


async def test_calls_come_whole_and_streamed_alike(world: World) -> None:
    whole = await world.openai.chat.completions.create(**chat())
    choice = whole.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    found = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]  # type: ignore[union-attr]
    assert found == [("get_weather", ARGUMENTS), ("now", "{}")]
    text, calls, reasons = await streamed(world)
    assert text == "Let me look."
    assert [(name, arguments) for _, name, arguments in calls] == found
    assert reasons == ["tool_calls"]
    assert len({call_id for call_id, _, _ in calls}) == 2
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(shipped_tokenizer().encode_plain(TEXT)) + 1


async def test_content_is_null_beside_calls_alone(world: World) -> None:
    world.worker.script = say(CALL)
    body = (await world.http.post("/v1/chat/completions", json=chat())).json()
    assert body["choices"][0]["message"]["content"] is None
    assert body["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_without_a_call_is_plain_text(world: World) -> None:
    world.worker.script = say("no <tool_call> of any kind </tool_call>")
    whole = await world.openai.chat.completions.create(**chat())
    assert whole.choices[0].message.tool_calls is None
    assert whole.choices[0].message.content == "no <tool_call> of any kind </tool_call>"
    assert whole.choices[0].finish_reason == "stop"
    assert await streamed(world) == ("no <tool_call> of any kind </tool_call>", [], ["stop"])


async def test_a_call_that_is_cut_short_says_length(world: World) -> None:
    text, calls, reasons = await streamed(world, max_tokens=len(call_ids()) - 8)
    assert reasons == ["length"]
    assert (text, len(calls)) == ("Let me look.", 1)
    assert ARGUMENTS.startswith(calls[0][2].rstrip("\ufffd"))  # it may end within a character
    world.worker.script = say(CALL[: CALL.index("Z")])  # the model ends in the middle by itself
    assert (await streamed(world))[2] == ["stop"]


async def test_with_choice_none_the_model_is_told_of_no_tools(world: World) -> None:
    whole = await world.openai.chat.completions.create(**chat(tool_choice="none"))
    assert whole.choices[0].message.content == TEXT
    plain = await world.openai.chat.completions.create(model="base", messages=QUESTION)  # type: ignore[arg-type]
    assert plain.choices[0].message.content == TEXT
    first, second = world.worker.submits
    assert first.prompt_ids == second.prompt_ids


async def test_definitions_calls_and_results_are_in_the_prompt(world: World) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    messages = [
        {"role": "system", "content": "Be brief."},
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny <|end|> 20"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "dry"}]},
    ]
    await world.openai.chat.completions.create(**chat(messages=messages))
    ids = list(world.worker.submits[0].prompt_ids)
    prompt = shipped_tokenizer().decode(ids, skip_special=False)
    assert "Be brief.\n\n# Tools" in prompt
    assert json.dumps(WEATHER["function"]["name"]) in prompt  # type: ignore[index]
    assert CALL in prompt
    assert "<tool_response>\nsunny <|end|> 20\n</tool_response>\n<tool_response>\ndry\n</tool_response>" in prompt
    special = [i for i in ids if i in shipped_tokenizer().special_ids]
    assert len(special) == 2 * 4 + 1, "a role and an end for each of four messages, and the answer's role"


async def test_the_first_fragment_leaves_before_the_last_token(world: World) -> None:
    """The worker stands still in the middle of the arguments: what was computed is with the client already."""
    num_tokens = len(shipped_tokenizer().encode_plain(CALL[: CALL.index("days")]))
    world.worker.script, world.worker.hang_after = say(CALL), num_tokens
    stream = await world.openai.chat.completions.create(**chat(), stream=True)
    arguments = ""
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            arguments += call.function.arguments or ""  # type: ignore[union-attr]
        if arguments:
            break
    assert ARGUMENTS.startswith(arguments)
    assert world.worker.step <= num_tokens < len(call_ids())
    await stream.close()


@pytest.mark.parametrize("num_tokens", [1, 5, 20, 30])
async def test_a_worker_killed_in_the_middle_of_a_call_changes_nothing(num_tokens: int) -> None:
    async with gateway_world(2) as world:
        for worker in world.workers:
            worker.script = say(TEXT)
        world.worker.die_after = num_tokens
        text, calls, reasons = await streamed(world)
        assert (text, reasons) == ("Let me look.", ["tool_calls"])
        assert [(name, arguments) for _, name, arguments in calls] == [("get_weather", ARGUMENTS), ("now", "{}")]
        assert [len(worker.submits) for worker in world.workers] == [1, 1]


async def test_each_choice_has_calls_of_its_own(world: World) -> None:
    texts = {0: CALL, 1: "plain", 2: TEXT}
    world.worker.script = lambda submit, choice: [*shipped_tokenizer().encode_plain(texts[choice]), END_ID]
    answer = await world.openai.chat.completions.create(**chat(n=3))
    assert [len(choice.message.tool_calls or []) for choice in answer.choices] == [1, 0, 2]
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop", "tool_calls"]
    calls = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(set(calls)) == 3


async def test_tokens_and_log_probabilities_are_all_told(world: World) -> None:
    more = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    ids, entries = [], 0
    async for chunk in await world.openai.chat.completions.create(**chat(**more), stream=True):
        choice = chunk.choices[0]
        ids += choice.model_dump().get("token_ids") or []
        entries += len(choice.logprobs.content or []) if choice.logprobs else 0
    assert ids == [*shipped_tokenizer().encode_plain(TEXT), END_ID]
    assert entries == len(ids)


async def test_required_named_and_strict_calls_are_enforced_at_the_worker(world: World) -> None:
    world.worker.script = say(CALL)
    named = {"type": "function", "function": {"name": "get_weather"}}
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({"tool_choice": "required"}, "tool_calls", 2),
        ({"tool_choice": named}, "stop", 1),
        ({"tools": [strict, NOW]}, "tool_calls", 2),
        ({"parallel_tool_calls": False}, "tool_calls", 2),
        ({"tool_choice": "auto"}, "tool_calls", 0),
        ({"response_format": {"type": "json_object"}}, "tool_calls", 3),
        ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "tool_calls", 2),
        ({"tool_choice": "none", "tools": [strict]}, "stop", 0),
    ]
    for fields, reason, num_tools in cases:
        world.worker.submits.clear()
        answer = await world.openai.chat.completions.create(**chat(**fields))
        grammar = world.worker.submits[0].sampling.grammar
        assert answer.choices[0].finish_reason == reason, fields
        assert (grammar.kind, grammar.text.count("%json")) == ("calls" if num_tools else "", num_tools), fields


async def test_the_schema_that_cannot_be_enforced_is_named(world: World) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    with pytest.raises(openai.BadRequestError, match="not") as caught:
        await world.openai.chat.completions.create(**chat(tools=[NOW, odd], tool_choice="required"))
    assert caught.value.param == "tools[1].function.parameters"
    await world.openai.chat.completions.create(**chat(tools=[NOW, odd]))  # nothing was asked for


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "description": "some bad\nstuff"}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": ["bad stuff"]}}}]},
        {"messages": [*QUESTION, {"role": "tool", "tool_call_id": "a", "content": "bad stuff"}]},
        {"messages": [*QUESTION, {"role": "assistant", "content": "x", "reasoning": "bad stuff"}]},
        {
            "messages": [
                *QUESTION,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": '{"a": ["\\u0062ad\\nstuff"]}'}},
                    ],
                },
            ]
        },
    ],
    ids=["description", "schema", "result", "reasoning", "arguments in escapes"],
)
async def test_a_content_policy_reads_all_that_a_client_writes(world: World, fields: dict[str, Any]) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("bad stuff",)})
    await world.openai.chat.completions.create(**chat(**fields))
    world.keys.change_plan(KEY, content_policy="rules")
    with pytest.raises(openai.BadRequestError) as caught:
        await world.openai.chat.completions.create(**chat(**fields))
    assert (caught.value.code, world.placed) == ("content_filter", 1)


async def test_a_hit_within_arguments_ends_the_answer_as_a_policy_does(world: World) -> None:
    world.content.policies["rules"] = ContentPolicy(words={"foul": ("Z\u00fcrich",)}, replacement="[cut]")
    world.keys.change_plan(KEY, content_policy="rules")
    assert (await streamed(world))[2] == ["content_filter"]
    whole = await world.openai.chat.completions.create(**chat())
    assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("content_filter", "[cut]")
    assert whole.choices[0].message.tool_calls is None


FUNCTION = {"name": "f"}


def tool(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**FUNCTION, **more}}]}


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"items": inner}, range(40), {"type": "object"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (tool(name="a b"), "tools[0].function.name"),
        (tool(name="x" * 65), "tools[0].function.name"),
        (tool(more=1), "tools[0].function.more"),
        (
            tool(description=1),
            "tools[0].function.description",
        ),
        (tool(parameters=[]), "tools[0].function.parameters"),
        (
            tool(parameters=DEEP),
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": FUNCTION}] * 2}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": FUNCTION}] * 129}, "tools"),
        (tool(description="x" * 70_000), "tools[0].function"),
        (tool(parameters={"enum": list(range(40_000))}), "tools[0].function.parameters"),
        (calling("[" * 70 + "]" * 70), "messages[0].tool_calls[0].function.arguments"),
        (calling("[" * 20_000 + "]" * 20_000), "messages[0].tool_calls[0].function.arguments"),
        (calling(json.dumps([1] * 70_000)), "messages[0].tool_calls[0].function.arguments"),
        (calling({}), "messages[0].tool_calls[0].function.arguments"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"extra_body": {"structured_outputs": {"regex": "a+"}}}, "structured_outputs.regex"),
        ({"functions": [FUNCTION]}, "functions"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(world: World, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await world.openai.chat.completions.create(**chat(**fields))
    assert caught.value.param == param
    assert world.placed == 0
