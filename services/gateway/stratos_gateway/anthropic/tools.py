"""Tools of a request and what its answer does with them: ``tools``, ``tool_choice``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.pins import CACHE_CONTROL
from stratos.core.requests.tools import NO_TOOLS, Tool, ToolMode, ToolUse, ValueBudget, check_tool_sizes
from stratos_gateway.anthropic.content import MAX_NAME_CHARS
from stratos_gateway.openai.fields import Fields, object_fields
from stratos_gateway.openai.tools import check_function, check_tools

_MODES = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "tool": ToolMode.NAMED, "none": ToolMode.NONE}


def take_message_tools(fields: Fields) -> ToolUse:
    """Read the fields of one request.

    Raises:
        BadRequest: malformed, out of bounds, or a tool that the server would have to run, with ``param``.
    """
    given, choice = fields.take("tools"), fields.take("tool_choice")
    tools = check_tools(given, _tool)
    mode, named, is_parallel = _choice(choice, tools)
    if not tools:
        return NO_TOOLS
    check_tool_sizes(tools, "tools")
    return ToolUse(tools=tools, mode=mode, named=named, is_parallel=is_parallel)


def _tool(value: Any, path: str, budget: ValueBudget) -> Tool:
    fields = object_fields(value, path)
    if fields.take("type") not in (None, "custom"):
        text = f"{path}.type: only tools that the client runs are supported"
        raise BadRequest(text, param=f"{path}.type", code="unsupported_parameter")
    fields.ignore("eager_input_streaming")  # arguments are never held back
    fields.refuse("defer_loading", False)
    fields.refuse("allowed_callers", ["direct"], [])
    fields.refuse("input_examples", [])
    keeps_s = fields.take_ttl(CACHE_CONTROL)
    tool = check_function(fields, path, budget, schema_name="input_schema", max_name_chars=MAX_NAME_CHARS)
    return replace(tool, keeps_s=keeps_s or 0)


def _choice(value: Any, tools: tuple[Tool, ...]) -> tuple[ToolMode, str, bool]:
    """Mode, the tool that it names, and whether there may be several calls."""
    if value is None:
        return ToolMode.AUTO, "", True
    fields = object_fields(value, "tool_choice")
    kind, name = fields.take("type"), fields.take("name")
    is_parallel = not fields.flag("disable_parallel_tool_use")
    fields.end()
    if not isinstance(kind, str) or kind not in _MODES:
        raise BadRequest(f"tool_choice.type must be one of {', '.join(_MODES)}", param="tool_choice.type")
    mode = _MODES[kind]
    if mode is ToolMode.REQUIRED and not tools:
        raise BadRequest("tool_choice any needs tools", param="tool_choice")
    if mode is ToolMode.NAMED and name not in [tool.name for tool in tools]:
        raise BadRequest("tool_choice names a tool that tools does not have", param="tool_choice.name")
    return mode, name if mode is ToolMode.NAMED else "", is_parallel
