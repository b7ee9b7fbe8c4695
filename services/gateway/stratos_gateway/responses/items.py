"""Input of a response -> the messages of a conversation.

Items that follow one another and are one turn of the assistant (its reasoning, its text, its calls) are one message,
as chat templates want them.  Instructions and system messages at the beginning are one message, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import MAX_ALL_CONTENT_PARTS, MAX_CONTENT_PARTS, MAX_MESSAGES
from stratos.core.requests.tools import (
    MAX_CALL_DEPTH,
    MAX_CALL_VALUES,
    MAX_MESSAGE_CALLS,
    ToolCall,
    ValueBudget,
    check_called_name,
    check_tool_name,
)
from stratos.text.chat_template import ChatMessage
from stratos.text.marked_text import MarkedText
from stratos_gateway.openai.messages import check_arguments, check_call_id, left_out_note, mark_part, read_file
from stratos_gateway.responses.tools import full_name

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Types of parts that are text, and the field that has it."""
_FILE, _FILE_FIELDS = "input_file", ("file_data", "file_id", "file_url", "filename")
_LEFT_OUT = {"input_image": "image", _FILE: "file"}
"""Parts of a function's output that a note stands for where they are no text: tools make them unasked."""
_THOUGHTS, _SUMMARIES = {"reasoning_text": "text", "text": "text"}, {"summary_text": "text"}
_KINDS = ("message", "reasoning", "function_call", "function_call_output")


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """A checked ``input``."""

    messages: tuple[ChatMessage, ...] = ()
    ignored: tuple[str, ...] = ()
    """Names of parts that a note stands for, and of marks of what is not kept."""


def check_input(value: Any) -> CheckedInput:
    """Check the ``input`` parameter: a text, or a list of items.

    Raises:
        BadRequest: says which item is wrong, and how.
    """
    if isinstance(value, str):
        return CheckedInput((ChatMessage("user", value),))
    if not isinstance(value, list) or not value:
        raise BadRequest("input must be a string or a non-empty list of items", param="input")
    if len(value) > MAX_MESSAGES:
        raise BadRequest(f"input may hold at most {MAX_MESSAGES} items", param="input")
    contents = [entry.get(name) for entry in value if isinstance(entry, dict) for name in ("content", "output")]
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_ALL_CONTENT_PARTS:
        raise BadRequest(f"input may hold at most {MAX_ALL_CONTENT_PARTS} parts together", param="input")
    reader = _ItemReader(ValueBudget(MAX_CALL_VALUES, MAX_CALL_DEPTH))
    messages = tuple(_joined([reader.read(entry, f"input[{index}]") for index, entry in enumerate(value)]))
    return CheckedInput(messages, tuple(reader.ignored))


def with_instructions(instructions: str, messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Instructions, and the messages after them; what the system says first is one message, most templates take one."""
    told, begin = MarkedText("\n\n"), 0
    if instructions:
        told.add(instructions)
    while begin < len(messages) and messages[begin].role == "system":
        told.add(messages[begin].content, marks=messages[begin].marks)
        begin += 1
    system = (ChatMessage("system", told.text, marks=told.marks),) if told else ()
    return (*system, *messages[begin:])


@dataclass(frozen=True, slots=True)
class _TurnPart:
    """One item as a message."""

    message: ChatMessage
    is_text: bool = False
    """It has the text of its turn, after which only calls belong to the same one."""


@dataclass(frozen=True, slots=True)
class _ItemReader:
    """Reads the items of one request; everything raises ``BadRequest`` with the place of what is wrong."""

    budget: ValueBudget
    ignored: dict[str, None] = field(default_factory=dict)
    """Names of what the model is not shown, and of marks of what is not kept."""

    def read(self, entry: Any, param: str) -> _TurnPart:
        """One item as a message."""
        if not isinstance(entry, dict):
            raise BadRequest(f"{param} must be an object", param=param)
        kind = entry.get("type") or ("message" if "role" in entry else None)
        match kind:
            case "message":
                told = self._content(entry.get("content"), f"{param}.content")
                return _TurnPart(ChatMessage(_role(entry, param), told.text, marks=told.marks), True)
            case "reasoning":
                return _TurnPart(ChatMessage("assistant", "", reasoning=self._reasoning(entry, param)))
            case "function_call":
                return _TurnPart(ChatMessage("assistant", "", tool_calls=(_call(entry, param, self.budget),)))
            case "function_call_output":
                call_id = check_call_id(entry.get("call_id"), f"{param}.call_id")
                told = self._content(entry.get("output"), f"{param}.output", _LEFT_OUT)
                return _TurnPart(ChatMessage("tool", told.text, tool_call_id=call_id, marks=told.marks))
        text = f"{param}.type: only {', '.join(_KINDS)} are supported"
        raise BadRequest(text, param=f"{param}.type", code="unsupported_parameter")

    def _reasoning(self, entry: dict[str, Any], param: str) -> str:
        """Reasoning as it was, else its summary; what another server has encrypted cannot be read here."""
        content, summary = entry.get("content"), entry.get("summary")
        if content or summary:
            name, kinds = ("content", _THOUGHTS) if content else ("summary", _SUMMARIES)
            told = self._parts(content or summary, f"{param}.{name}", kinds)
            self.ignored.update({name: None for mark in told.marks for name in mark.fields})
            return told.text
        if entry.get("encrypted_content"):
            text = f"{param}.encrypted_content cannot be read here; send the content of the item"
            raise BadRequest(text, param=f"{param}.encrypted_content", code="unsupported_parameter")
        return ""

    def _content(self, value: Any, param: str, noted: Mapping[str, str] = MappingProxyType({})) -> MarkedText:
        if isinstance(value, str):
            told = MarkedText()
            told.add(value)
            return told
        return self._parts(value, param, _TEXTS, noted)

    def _parts(
        self, value: Any, param: str, kinds: Mapping[str, str], noted: Mapping[str, str] = MappingProxyType({})
    ) -> MarkedText:
        """The texts of a list of parts, and notes for those of other kinds that may stand there."""
        if not isinstance(value, list):
            raise BadRequest(f"{param} must be a list of parts, or a text where the API has one", param=param)
        if len(value) > MAX_CONTENT_PARTS:
            raise BadRequest(f"{param} may hold at most {MAX_CONTENT_PARTS} parts", param=param)
        told = MarkedText()
        for index, part in enumerate(value):
            where = f"{param}[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(kind, str):
                raise BadRequest(f"{where} must be an object with a type", param=where)
            text = self._noted(part, noted[kind]) if kind in noted else _part_text(part, kind, where, kinds)
            told.add(text)
            mark_part(told, part, f"{where}.")
        return told

    def _noted(self, part: dict[str, Any], noun: str) -> str:
        """Text of a file that a function has made, or the note in the place of what is no text."""
        if part["type"] == _FILE:
            with suppress(BadRequest):
                return _file(part, "")
        self.ignored[f"function_call_output.{part['type']}"] = None
        return left_out_note(noun)


def _joined(turns: Sequence[_TurnPart]) -> Iterator[ChatMessage]:
    """Messages; items of one turn of the assistant are joined."""
    open_turn: _TurnPart | None = None
    for turn in turns:
        joined = None if open_turn is None else _join(open_turn, turn)
        if joined is None and open_turn is not None:
            yield open_turn.message
        open_turn = joined or turn
    if open_turn is not None:
        yield open_turn.message


def _join(turn: _TurnPart, later: _TurnPart) -> _TurnPart | None:
    """Both as one, where ``later`` goes on with the turn: reasoning, then text, then calls."""
    ours, theirs = turn.message, later.message
    if not ours.role == theirs.role == "assistant":
        return None
    if theirs.tool_calls:
        if len(ours.tool_calls) >= MAX_MESSAGE_CALLS:
            return None
        return _TurnPart(replace(ours, tool_calls=(*ours.tool_calls, *theirs.tool_calls)), turn.is_text)
    if turn.is_text or ours.tool_calls:
        return None
    return _TurnPart(replace(theirs, reasoning=ours.reasoning + theirs.reasoning), later.is_text)


def _role(entry: dict[str, Any], param: str) -> str:
    role = entry.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"{param}.role must be one of {', '.join(_ROLES)}", param=f"{param}.role")
    return _ROLES[role]


def _call(entry: dict[str, Any], param: str, budget: ValueBudget) -> ToolCall:
    call_id = check_call_id(entry.get("call_id"), f"{param}.call_id")
    name, namespace = check_called_name(entry.get("name"), f"{param}.name"), entry.get("namespace")
    if namespace is not None:
        name = full_name(check_tool_name(namespace, f"{param}.namespace"), name)
    return ToolCall(call_id, name, check_arguments(entry.get("arguments"), f"{param}.arguments", budget))


def _file(part: dict[str, Any], where: str) -> str:
    return read_file({name: part[name] for name in _FILE_FIELDS if part.get(name) is not None}, where)


def _part_text(part: dict[str, Any], kind: str, where: str, kinds: Mapping[str, str]) -> str:
    if kind == _FILE and kinds is _TEXTS:
        return _file(part, where)
    if kind not in kinds:
        text = f"{where}.type: only {', '.join(kinds)} are supported"
        raise BadRequest(text, param=f"{where}.type", code="unsupported_parameter")
    name = kinds[kind]
    if not isinstance(part.get(name), str):
        raise BadRequest(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return str(part[name])
