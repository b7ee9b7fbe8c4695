"""Messages before templates of several kinds: those that reason or not, and those that want system texts first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.text.chat_template import ChatTemplate
from stratos.text.output.chat_format import chat_format
from stratos_gateway.preparation.dialects import MESSAGE
from stratos_gateway.preparation.generation import GenerationPreparer
from tests.support.reference.shipped_model import preparation_tools, served_model, shipped_tokenizer

USER = {"role": "user", "content": "hi"}
EACH = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SWITCH = EACH + "{% if enable_thinking is defined %}<{{ enable_thinking }}>{% endif %}{# <think> </think> #}"
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + EACH
    + "<{{ thinking }}>{# <think> </think> enable_thinking #}"
)
REASONS = EACH + "{# <think> </think> #}"


async def prompt(template: str, **body: Any) -> str:
    shipped = served_model()
    model = replace(shipped, template=ChatTemplate(template, shipped.tokenizer), chat=chat_format(template))
    tools = preparation_tools(model)
    fields = {"model": "base", "max_tokens": 2000, "messages": [USER], **body}
    prepared = await GenerationPreparer(tools, MESSAGE).prepare(fields, Tenant(name="t"), NO_TRACE)
    return shipped_tokenizer().decode(prepared.specs[0].prompt_ids)


@pytest.mark.parametrize(
    ("thinking", "switch"),
    [
        (None, ""),
        ({"type": "adaptive"}, "<True>"),
        ({"type": "enabled", "budget_tokens": 1024}, "<True>"),
        ({"type": "disabled"}, "<False>"),
    ],
)
async def test_a_template_with_a_switch_is_told_whether_to_think(thinking: Any, switch: str) -> None:
    assert await prompt(SWITCH, thinking=thinking) == f"[user]hi{switch}"
    assert await prompt(DEEPSEEK, thinking=thinking) == f"[user]hi{switch or '<False>'}"


async def test_a_model_that_always_thinks_refuses_not_to() -> None:
    assert await prompt(REASONS, thinking={"type": "adaptive"}) == "[user]hi"
    with pytest.raises(BadRequest) as caught:
        await prompt(REASONS, thinking={"type": "disabled"})
    assert (caught.value.param, caught.value.code) == ("thinking", "unsupported_parameter")
    assert await prompt(EACH, thinking={"type": "disabled"}) == "[user]hi"


async def test_system_texts_go_to_the_beginning_where_the_template_wants_them_there() -> None:
    later = [USER, {"role": "system", "content": "later"}, USER]
    assert await prompt(EACH, system="first", messages=later) == "[system]first[user]hi[system]later[user]hi"
    assert await prompt(STRICT, system="first", messages=later) == "[system]first\n\nlater[user]hi[user]hi"
    refusing = "{{ raise_exception('never') }}"
    with pytest.raises(BadRequest, match="never"):
        await prompt(refusing, messages=later)


BY_TURNS = (
    "{% set ns = namespace(num=0) %}{% for m in messages %}{% if m.role == 'user' or m.tool_calls is not defined and "
    "m.role == 'assistant' %}{% if (m.role == 'user') != (ns.num % 2 == 0) %}{{ raise_exception('roles by turns') }}"
    "{% endif %}{% set ns.num = ns.num + 1 %}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
TOLD_OF_TOOLS = "{# tools [TOOL_CALLS] #}"
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "42"}


async def test_what_a_user_says_behind_results_is_part_of_them_where_roles_go_by_turns() -> None:
    said = {"role": "user", "content": [RESULT, {"type": "text", "text": "and?"}]}
    messages = [USER, CALL, said, {"role": "assistant", "content": "so"}, USER]
    told = "[user]hi[assistant][tool]42\n\nand?[assistant]so[user]hi"
    assert await prompt(BY_TURNS + TOLD_OF_TOOLS, messages=messages) == told
    later = [*messages[:3], {"role": "system", "content": "later"}, *messages[3:]]
    refusal = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('x') }}{% endif %}"
    strict = BY_TURNS.replace("[{{", f"{refusal}[{{{{")
    assert await prompt(strict + TOLD_OF_TOOLS, messages=later) == f"[system]later{told}"
    assert "[tool]42[user]and?" in await prompt(EACH + TOLD_OF_TOOLS, messages=messages)
