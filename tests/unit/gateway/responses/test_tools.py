"""Tools of a response: functions, namespaces of functions, offers that this server leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import MAX_TOOLS, ToolMode
from stratos_gateway.openai.fields import Fields
from stratos_gateway.responses.tools import ResponseTools, take_response_tools

FUNCTION = {"type": "function", "name": "close", "description": "Close one", "parameters": {"type": "object"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [FUNCTION]}
SEARCH = {"type": "web_search", "external_web_access": True}


def read(*tools: Any, **more: Any) -> ResponseTools:
    return take_response_tools(Fields({"tools": list(tools), **more}))


def test_a_function_of_a_namespace_is_told_by_one_name() -> None:
    found = read(FUNCTION, AGENTS)
    assert [tool.name for tool in found.use.tools] == ["close", "agents__close"]
    assert found.use.tools[1].description == "Agents.\nClose one"
    assert found.owners == {"agents__close": ("agents", "close")}
    plain, grouped = found.shown
    assert (plain["name"], plain["strict"]) == ("close", False)
    assert grouped == {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [plain]}
    assert found.ignored == ()


def test_a_search_that_nobody_demands_is_left_out_by_its_place() -> None:
    found = read(FUNCTION, SEARCH)
    assert ([tool.name for tool in found.use.tools], found.ignored) == (["close"], ("tools[1]",))
    assert read(SEARCH).use.mode is ToolMode.NONE
    with pytest.raises(BadRequest) as caught:
        read(FUNCTION, SEARCH, tool_choice={"type": "web_search"})
    assert caught.value.param == "tool_choice.type"
    with pytest.raises(BadRequest) as caught:
        read(SEARCH, tool_choice="required")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (1, "tools[0]"),
        ({"type": ["web_search"]}, "tools[0].type"),
        ({"type": "file_search", "vector_store_ids": ["a"]}, "tools[0].type"),
        ({"type": "custom", "name": "patch"}, "tools[0].type"),
        ({**FUNCTION, "defer_loading": True}, "tools[0].defer_loading"),
        ({**FUNCTION, "more": 1}, "tools[0].more"),
        ({**AGENTS, "name": "a b"}, "tools[0].name"),
        ({**AGENTS, "description": 1}, "tools[0].description"),
        ({**AGENTS, "tools": None}, "tools[0].tools"),
        ({**AGENTS, "more": 1}, "tools[0].more"),
        ({**AGENTS, "tools": [AGENTS]}, "tools[0].tools[0].type"),
        ({**AGENTS, "tools": [{**FUNCTION, "parameters": []}]}, "tools[0].tools[0].parameters"),
        ({**AGENTS, "tools": [FUNCTION, FUNCTION]}, "tools[0].tools[1]"),
        ({**AGENTS, "tools": [FUNCTION] * (MAX_TOOLS + 1)}, "tools[0].tools"),
    ],
)
def test_what_is_malformed_is_named(tool: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(tool)
    assert caught.value.param == param


def test_namespaces_do_not_widen_the_number_of_tools() -> None:
    half = [{**FUNCTION, "name": f"f{i}"} for i in range(MAX_TOOLS // 2 + 1)]
    with pytest.raises(BadRequest) as caught:
        read({**AGENTS, "tools": half}, {**AGENTS, "name": "others", "tools": half})
    assert caught.value.param == "tools"
