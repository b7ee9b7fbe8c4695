"""Tools of a response: functions, namespaces of them, and offers of a search that this server does not run.

A model is told of a function in a namespace by one name, ``namespace__function``; clients see both parts of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import (
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_VALUES,
    Tool,
    ToolUse,
    ValueBudget,
    check_num_tools,
    check_tool_name,
)
from stratos_gateway.openai.fields import Fields, object_fields
from stratos_gateway.openai.tools import check_function, take_use

_OFFERED = ("web_search", "web_search_2025_08_26", "web_search_preview", "image_generation")
"""Tools of the server that an answer may go without: agents offer them to every model."""
_SEPARATOR = "__"

Definition = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTools:
    """Tools of one request."""

    use: ToolUse
    shown: Sequence[Definition]
    """Definitions as the response repeats them."""
    owners: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and own name of the functions that have one, by the name that the model is told."""
    ignored: tuple[str, ...] = ()
    """Places of the tools that are offered to no model."""


def full_name(namespace: str, name: str) -> str:
    """The name by which a model knows a function of a namespace."""
    return f"{namespace}{_SEPARATOR}{name}"


def take_response_tools(fields: Fields) -> ResponseTools:
    """Read the fields of one request that are about tools.

    Raises:
        BadRequest: malformed, out of bounds, or not supported, with ``param``.
    """
    given = fields.take("tools")
    if given is not None and not isinstance(given, list):
        raise BadRequest("tools must be a list", param="tools")
    reader = _Reader()
    check_num_tools(given or (), "tools")
    for index, entry in enumerate(given or ()):
        reader.read(entry, f"tools[{index}]")
    check_num_tools(reader.tools, "tools")
    use = take_use(fields, tuple(reader.tools), is_flat=True)
    return ResponseTools(use=use, shown=reader.shown, owners=reader.owners, ignored=tuple(reader.ignored))


class _Reader:
    """Reads the tools of one request, whose schemas have one budget."""

    def __init__(self) -> None:
        self.tools: list[Tool] = []
        self.shown: list[Definition] = []
        self.owners: dict[str, tuple[str, str]] = {}
        self.ignored: list[str] = []
        self._budget = ValueBudget(MAX_SCHEMA_VALUES, MAX_SCHEMA_DEPTH)

    def read(self, value: Any, path: str) -> None:
        """Read the tool at a place."""
        fields = object_fields(value, path)
        match fields.take("type"):
            case "function":
                tool = self._function(fields, path)
                self.tools.append(tool)
                self.shown.append(_definition(tool))
            case "namespace":
                self._namespace(fields, path)
            case kind if kind in _OFFERED:
                self.ignored.append(path)
            case _:
                text = f"{path}.type: only tools of the types function and namespace are supported"
                raise BadRequest(text, param=f"{path}.type", code="unsupported_parameter")

    def _namespace(self, fields: Fields, path: str) -> None:
        name = check_tool_name(fields.take("name"), f"{path}.name")
        about, entries = fields.take("description") or "", fields.take("tools")
        fields.end()
        if not isinstance(about, str):
            raise BadRequest(f"{path}.description must be a string", param=f"{path}.description")
        if not isinstance(entries, list):
            raise BadRequest(f"{path}.tools must be a list", param=f"{path}.tools")
        check_num_tools(entries, f"{path}.tools")
        shown = []
        for index, entry in enumerate(entries):
            where = f"{path}.tools[{index}]"
            within = object_fields(entry, where)
            if within.take("type") != "function":
                text = f"{where}.type: only function is supported"
                raise BadRequest(text, param=f"{where}.type", code="unsupported_parameter")
            tool = self._function(within, where)
            shown.append(_definition(tool))
            told = full_name(name, tool.name)
            self.owners[told] = (name, tool.name)
            lines = [text for text in (about, tool.description) if text]
            self.tools.append(replace(tool, name=told, description="\n".join(lines)))
        self.shown.append({"type": "namespace", "name": name, "description": about, "tools": shown})

    def _function(self, fields: Fields, path: str) -> Tool:
        fields.refuse("defer_loading", False)
        fields.refuse("allowed_callers", ["direct"], [])
        fields.refuse("output_schema")
        return check_function(fields, path, self._budget)


def _definition(tool: Tool) -> Definition:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters,
        "strict": tool.is_strict,
    }
