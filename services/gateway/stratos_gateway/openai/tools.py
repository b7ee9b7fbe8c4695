"""Fields of a chat that are about tools: ``tools``, ``tool_choice``, ``parallel_tool_calls``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.pins import CACHE_CONTROL
from stratos.core.requests.tools import (
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_VALUES,
    MAX_TOOL_NAME_CHARS,
    NO_TOOLS,
    Tool,
    ToolMode,
    ToolUse,
    ValueBudget,
    check_num_tools,
    check_schema,
    check_tool_name,
    check_tool_sizes,
)
from stratos_gateway.openai.fields import Fields, object_fields

ALLOWED_TOOLS = "allowed_tools"
"""A choice among some of the tools."""


def take_tools(fields: Fields) -> ToolUse:
    """Read the fields of one chat.

    Raises:
        BadRequest: malformed, out of bounds, or not supported, with ``param``.
    """
    fields.refuse("functions", [])
    fields.refuse("function_call", "none", "auto")
    return take_use(fields, check_tools(fields.take("tools"), _tool))


def take_use(fields: Fields, tools: tuple[Tool, ...], *, is_flat: bool = False) -> ToolUse:
    """Read what a request's answer does with its tools.

    Args:
        fields: of the request, of which ``tools`` was taken.
        tools: of the request.
        is_flat: a function is not an object within its tool, as in the Responses API.

    Raises:
        BadRequest: malformed, out of bounds, or not supported, with ``param``.
    """
    choice, is_parallel = fields.take("tool_choice"), fields.flag("parallel_tool_calls", default=True)
    allowed, choice = _allowed(choice, tools, is_flat=is_flat)
    mode, named = _choice(choice, tools, is_flat=is_flat)
    if not tools:
        return NO_TOOLS
    check_tool_sizes(tools, "tools")
    loses_marks = any(tool.keeps_s for tool in tools if tool not in allowed)
    return ToolUse(tools=allowed, mode=mode, named=named, is_parallel=is_parallel, loses_marks=loses_marks)


def check_tools(value: Any, check_one: Callable[[Any, str, ValueBudget], Tool]) -> tuple[Tool, ...]:
    """Check the ``tools`` of one request, whose schemas have one budget.

    Args:
        value: of the field.
        check_one: checks the tool at a place.

    Raises:
        BadRequest: no list, too many, or what ``check_one`` raises.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest("tools must be a list", param="tools")
    check_num_tools(value, "tools")
    budget = ValueBudget(MAX_SCHEMA_VALUES, MAX_SCHEMA_DEPTH)
    return tuple(check_one(entry, f"tools[{index}]", budget) for index, entry in enumerate(value))


def _tool(value: Any, path: str, budget: ValueBudget) -> Tool:
    fields = object_fields(value, path)
    kind = fields.take("type")
    if kind != "function":
        text = f"{path}.type: only tools of type function are supported"
        raise BadRequest(text, param=f"{path}.type", code="unsupported_parameter")
    function, within = fields.take("function"), f"{path}.function"
    keeps_s = fields.take_ttl(CACHE_CONTROL)
    fields.end()
    return replace(check_function(object_fields(function, within), within, budget), keeps_s=keeps_s or 0)


def check_function(
    fields: Fields,
    path: str,
    budget: ValueBudget,
    *,
    schema_name: str = "parameters",
    max_name_chars: int = MAX_TOOL_NAME_CHARS,
) -> Tool:
    """Check the definition of a function, to its last field.

    Args:
        fields: of the definition; what a dialect has beside these was taken.
        path: of the definition, for errors.
        budget: of the request's schemas.
        schema_name: the field that has the schema of its arguments.
        max_name_chars: most characters of its name.

    Raises:
        BadRequest: malformed or out of bounds, with ``param``.
    """
    name, description, schema = fields.take("name"), fields.take("description"), fields.take(schema_name)
    is_strict = fields.flag("strict")
    fields.end()
    if description is not None and not isinstance(description, str):
        raise BadRequest(f"{path}.description must be a string", param=f"{path}.description")
    return Tool(
        name=check_tool_name(name, f"{path}.name", max_name_chars),
        description=description or "",
        parameters=None if schema is None else check_schema(schema, f"{path}.{schema_name}", budget),
        is_strict=is_strict,
        place=path,
    )


def _allowed(value: Any, tools: tuple[Tool, ...], *, is_flat: bool) -> tuple[tuple[Tool, ...], Any]:
    """Tools that the model is told of, and the choice among them; ``allowed_tools`` narrows both."""
    if not isinstance(value, dict) or value.get("type") != ALLOWED_TOOLS:
        return tools, value
    fields, path = object_fields(value, "tool_choice"), "tool_choice"
    fields.ignore("type")
    if not is_flat:
        within, path = fields.take(ALLOWED_TOOLS), f"tool_choice.{ALLOWED_TOOLS}"
        fields.end()
        fields = object_fields(within, path)
    mode, given = fields.choice("mode", "auto", "required"), fields.take("tools")
    fields.end()
    if not isinstance(given, list) or not given:
        raise BadRequest(f"{path}.tools must be a list of functions", param=f"{path}.tools")
    check_num_tools(given, f"{path}.tools")
    names = {_function_name(entry, f"{path}.tools[{i}]", tools, is_flat=is_flat) for i, entry in enumerate(given)}
    return tuple(tool for tool in tools if tool.name in names), mode


def _choice(value: Any, tools: tuple[Tool, ...], *, is_flat: bool) -> tuple[ToolMode, str]:
    """Mode, and the tool that it names; without a word it is auto where there are tools."""
    if value is None:
        return ToolMode.AUTO, ""
    if isinstance(value, str):
        if value not in (ToolMode.NONE, ToolMode.AUTO, ToolMode.REQUIRED):
            raise BadRequest("tool_choice must be none, auto, required or a function", param="tool_choice")
        if value == ToolMode.REQUIRED and not tools:
            raise BadRequest("tool_choice required needs tools", param="tool_choice")
        return ToolMode(value), ""
    return ToolMode.NAMED, _function_name(value, "tool_choice", tools, is_flat=is_flat)


def _function_name(value: Any, path: str, tools: tuple[Tool, ...], *, is_flat: bool) -> str:
    """Name of the function that a choice is for."""
    fields = object_fields(value, path)
    if fields.take("type") != "function":
        text = f"{path}.type: only function is supported"
        raise BadRequest(text, param=f"{path}.type", code="unsupported_parameter")
    param = f"{path}.name"
    if not is_flat:
        function, param = fields.take("function"), f"{path}.function.name"
        fields.end()
        fields = object_fields(function, f"{path}.function")
    name = fields.take("name")
    fields.end()
    if name not in [tool.name for tool in tools]:
        raise BadRequest(f"{path} names a function that tools does not have", param=param)
    return str(name)
