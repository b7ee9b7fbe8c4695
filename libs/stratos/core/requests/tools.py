"""Tools that a request offers to its model, and the one validator of their names, numbers and sizes."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.common.errors import BadRequest

MAX_TOOLS = 128
"""OpenAI's bound."""
MAX_TOOL_CHARS = 65_536
"""Of one tool: name, description and the JSON of its schema."""
MAX_ALL_TOOL_CHARS = 262_144
"""Of all tools of a request together."""
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 32_768
"""Objects, lists and plain values in the schemas of all tools."""
RAW_ARGUMENTS = "raw_arguments"
"""Name of arguments that are no JSON object, where one is wanted."""
MAX_MESSAGE_CALLS = 128
"""Calls of one message."""
MAX_CALL_ID_CHARS = 256
MAX_CALL_DEPTH = 64
"""Levels of the arguments of a call that a message brings back."""
MAX_CALL_VALUES = 65_536
"""Values in the arguments of all of them."""
MAX_TOOL_NAME_CHARS = 64
MAX_CALLED_NAME_CHARS = 1024
"""As many as answers show of one that a model wrote."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class ToolMode(enum.StrEnum):
    """Whether an answer may, must or must not have calls."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """One call, of a tool that the request names."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that a model may ask to be called."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments; ``None`` where it has none."""
    is_strict: bool = False
    """Arguments must obey the schema."""
    keeps_s: int = field(default=0, compare=False)
    """Seconds that the prompt up to here is to be kept; 0 marks nothing."""
    place: str = field(default="", compare=False)
    """Where its request has it, for errors: "tools[0].function"."""

    def definition(self) -> dict[str, Any]:
        """Its definition as chat templates read it."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an earlier answer asked for."""

    id: str
    name: str
    arguments: str
    """JSON text."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Names and values of its arguments, without the escapes that JSON may hide them in; and its own name, where no
        function could have that."""
        own = () if _NAME.fullmatch(self.name) else (self.name,)
        try:
            return (*own, *scalar_texts(json.loads(self.arguments)))
        except (ValueError, RecursionError):
            return (*own, self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Tools of one request, and what its answer does with them."""

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.AUTO
    named: str = ""
    """The tool of mode ``NAMED``."""
    is_parallel: bool = True
    """An answer may have several calls."""
    loses_marks: bool = False
    """A tool that the model is not told of had a mark."""

    @property
    def may_call(self) -> bool:
        """Calls are looked for in the answer."""
        return bool(self.tools) and self.mode is not ToolMode.NONE

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that the definitions say."""
        return tuple(text for tool in self.tools for text in scalar_texts(tool.definition()))


NO_TOOLS = ToolUse(mode=ToolMode.NONE)


def check_tool_name(name: object, param: str, most: int = MAX_TOOL_NAME_CHARS) -> str:
    """Check the name of a function."""
    if not isinstance(name, str) or len(name) > most or not _NAME.fullmatch(name):
        raise BadRequest(f"{param} must be 1 to {most} letters, digits, underscores or dashes", param=param)
    return name


def check_called_name(name: object, param: str) -> str:
    """Check the name in a call that comes back: models write some that no function could have."""
    if not isinstance(name, str) or len(name) > MAX_CALLED_NAME_CHARS:
        raise BadRequest(f"{param} must be a string of at most {MAX_CALLED_NAME_CHARS} characters", param=param)
    return name


def check_num_tools(tools: Sequence[object], param: str) -> None:
    """Bound the number of tools."""
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"{param} may hold at most {MAX_TOOLS} tools", param=param)


class ValueBudget:
    """Bounds on JSON values that one request may hold in one of its fields, so that reading them takes milliseconds.

    Args:
        most: values, over all that is checked: objects, lists and plain ones.
        depth: levels of each.
    """

    def __init__(self, most: int, depth: int) -> None:
        self._most = self._left = most
        self._depth = depth

    def check(self, value: object, param: str) -> None:
        """Take the values of one JSON value; raises ``BadRequest``."""
        level = [value]
        for _ in range(self._depth + 1):
            self._left -= len(level)
            if self._left < 0:
                raise BadRequest(f"{param}: there may be at most {self._most} values of its kind", param=param)
            level = [child for node in level for child in _children(node)]
            if not level:
                return
        raise BadRequest(f"{param} is nested deeper than {self._depth} levels", param=param)


def check_schema(schema: object, param: str, budget: ValueBudget) -> Mapping[str, Any]:
    """Check that a schema is an object within its bounds; whether it can be enforced is for its grammar to say.

    Raises:
        BadRequest: with ``param``.
    """
    if not isinstance(schema, dict):
        raise BadRequest(f"{param} must be a JSON schema: an object", param=param)
    budget.check(schema, param)
    if schema.get("type", "object") != "object":
        raise BadRequest(f"{param}.type must be object", param=f"{param}.type")
    return schema


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else ()


def scalar_texts(value: object) -> list[str]:
    """Names and plain values of a JSON value as texts."""
    left, found = [value], list[str]()
    while left:
        match left.pop():
            case dict() as fields:
                found += fields
                left += fields.values()
            case list() as entries:
                left += entries
            case None | bool():
                pass
            case plain:
                found.append(str(plain))
    return found


def check_tool_sizes(tools: Sequence[Tool], param: str) -> None:
    """Check what all tools of a request take together.

    Raises:
        BadRequest: one is too large, all are, or two have one name.
    """
    num_chars, names = 0, set[str]()
    for tool in tools:
        where = tool.place or param
        if tool.name in names:
            raise BadRequest(f"{where}.name: there are two tools {tool.name!r}", param=where)
        names.add(tool.name)
        size = len(json.dumps(tool.definition(), ensure_ascii=False))
        if size > MAX_TOOL_CHARS:
            raise BadRequest(f"{where} may have at most {MAX_TOOL_CHARS} characters", param=where)
        num_chars += size
    if num_chars > MAX_ALL_TOOL_CHARS:
        raise BadRequest(f"{param} may have at most {MAX_ALL_TOOL_CHARS} characters together", param=param)
