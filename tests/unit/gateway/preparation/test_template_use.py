"""How a chat's prompt ends, and values of the client for its template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatTemplate
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.preparation.dialects import CHAT
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
