"""``allowed_tools``: the model is told of some of a request's tools, in both of OpenAI's forms."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import ToolMode, ToolUse
from stratos_gateway.openai.fields import Fields
from stratos_gateway.openai.requests import parse_chat
from stratos_gateway.openai.tools import take_tools
from stratos_gateway.responses.requests import parse_response

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "go", "stop")]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
GO = {"type": "function", "function": {"name": "go"}}


def use(choice: Any, tools: Any = TOOLS) -> ToolUse:
    return take_tools(Fields({"tools": tools, "tool_choice": choice}))


def allowed(**fields: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [GO], **fields}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_others_are_not_told_and_cannot_be_enforced(mode: str) -> None:
    found = use(allowed(mode=mode, tools=[TOOLS[2], GO]))
    assert [tool.name for tool in found.tools] == ["go", "stop"], "in the order of the tools"
    assert (found.mode, found.named) == (ToolMode(mode), "")


def test_a_response_repeats_the_choice_and_all_its_tools() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "go"}]}
    body = parse_response({"model": "m", "input": "hi", "tools": FLAT, "tool_choice": choice}, 100)
    [prompt] = body.prompts
    assert [tool.name for tool in prompt.tools.tools] == ["go"]  # type: ignore[union-attr]
    assert body.echoed["tool_choice"] == choice
    assert [tool["name"] for tool in body.echoed["tools"]] == ["look", "go", "stop"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({**allowed(), "more": 1}, "tool_choice.more"),
        (allowed(mode="none"), "tool_choice.allowed_tools.mode"),
        (allowed(tools=[]), "tool_choice.allowed_tools.tools"),
        (allowed(more=1), "tool_choice.allowed_tools.more"),
        (allowed(tools=[GO] * 129), "tool_choice.allowed_tools.tools"),
        (allowed(tools=[GO, {"type": "mcp"}]), "tool_choice.allowed_tools.tools[1].type"),
        (
            allowed(tools=[{"type": "function", "function": {"name": "run"}}]),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
    ],
)
def test_what_is_malformed_is_named(choice: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        use(choice)
    assert caught.value.param == param


def test_it_needs_tools() -> None:
    with pytest.raises(BadRequest):
        parse_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tool_choice": allowed()}, 100)
