"""How a chat's prompt ends, and values of the client for its template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatTemplate
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Renderer
from stratos_gateway.preparation.dialects import CHAT, MESSAGE, RESPONSE, Dialect
from stratos_gateway.preparation.generation import GenerationPreparer
from tests.support.reference.shipped_model import preparation_tools, served_model, shipped_tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}{{ mood }}"
)
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is"}]
CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}


async def spec(**body: Any) -> GenerationSpec:
    model = replace(served_model(), template=ChatTemplate(TEMPLATE, served_model().tokenizer))
    tools = preparation_tools(model)
    fields = {"model": "base", "messages": MESSAGES, **body}
    return (await GenerationPreparer(tools, CHAT).prepare(fields, Tenant(name="t"), NO_TRACE)).specs[0]


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({}, "[user]hi[assistant]It is[answer]"),
        ({"add_generation_prompt": False}, "[user]hi[assistant]It is"),
        (CONTINUED, "[user]hi[assistant]It is"),
        ({"chat_template_kwargs": {"mood": "<|end|>"}}, "[user]hi[assistant]It is[answer]<|end|>"),
    ],
)
async def test_prompts_end_as_they_are_asked_to(body: dict[str, Any], prompt: str) -> None:
    found = await spec(**body)
    assert shipped_tokenizer().decode(found.prompt_ids, skip_special=False) == prompt
    assert found.continues_prompt is (body is CONTINUED)
    assert not shipped_tokenizer().special_ids.intersection(found.prompt_ids)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
        ({"chat_template": "x"}, "chat_template"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await spec(**body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [(RESPONSE, {"input": "hi"}), (MESSAGE, {"max_tokens": 4, "messages": MESSAGES[:1]})],
    ids=["responses", "messages"],
)
async def test_the_other_dialects_have_values_for_the_template_too(dialect: Dialect, fields: dict[str, Any]) -> None:
    model = replace(served_model(), template=ChatTemplate(TEMPLATE, served_model().tokenizer))
    preparer = GenerationPreparer(preparation_tools(model), dialect)
    body = {"model": "base", **fields, "chat_template_kwargs": {"mood": "sad"}}
    prepared = await preparer.prepare(body, Tenant(name="t"), NO_TRACE)
    assert shipped_tokenizer().decode(prepared.specs[0].prompt_ids) == "[user]hi[answer]sad"
    with pytest.raises(BadRequest) as caught:
        await preparer.prepare({**body, "chat_template_kwargs": {"colour": 1}}, Tenant(name="t"), NO_TRACE)
    assert caught.value.param == "chat_template_kwargs.colour"


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS}], ids=["plain", "tools"])
@pytest.mark.parametrize(
    ("asked", "echo"),
    [
        ({}, ""),
        ({"echo": True}, "It is"),
        ({"echo": True, **CONTINUED}, "It is"),
        ({"echo": True, "messages": MESSAGES[:1]}, ""),
    ],
)
async def test_an_answer_begins_with_the_last_message_of_its_role_where_that_is_echoed(
    tools: dict[str, Any], asked: dict[str, Any], echo: str
) -> None:
    parts = [ChoiceChunk(0, " so", [5], [], None, is_first=True), ChoiceChunk(0, ".", [6], [], "stop", is_first=False)]
    rendered = [await renderer(**tools, **asked) for _ in range(2)]
    whole = rendered[0].body([ChoiceChunk(0, " so.", [5, 6], [], "stop", is_first=True)], Usage(1, 2))
    assert whole["choices"][0]["message"]["content"] == f"{echo} so."
    events = [json.loads(line) for part in parts for line in lines(rendered[1].stream_part([part]))]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == f"{echo} so."
    assert deltas[0] == {"role": "assistant", "content": echo}


async def renderer(**body: Any) -> Renderer:
    fields = {"model": "base", "messages": MESSAGES, **body}
    preparer = GenerationPreparer(preparation_tools(served_model()), CHAT)
    return (await preparer.prepare(fields, Tenant(name="t"), NO_TRACE)).renderer


def lines(part: bytes) -> list[str]:
    return [line.removeprefix("data: ") for line in part.decode().splitlines() if line.startswith("data: ")]
