"""Messages of a chat -> checked records: texts, calls that were asked for, results of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.documents import check_title, document_text, read_data_url
from stratos.core.requests.limits import MAX_ALL_CONTENT_PARTS, MAX_CONTENT_PARTS, MAX_MESSAGES
from stratos.core.requests.pins import BREAKPOINT, CACHE_CONTROL, MAX_BREAKPOINTS, CacheMark
from stratos.core.requests.tools import (
    MAX_CALL_DEPTH,
    MAX_CALL_ID_CHARS,
    MAX_CALL_VALUES,
    MAX_MESSAGE_CALLS,
    ToolCall,
    ToolUse,
    ValueBudget,
    check_called_name,
)
from stratos.text.chat_template import ChatMessage
from stratos.text.marked_text import MarkedText
from stratos.text.output.json_text import whole_characters
from stratos_gateway.openai.fields import NO_KEEPING, Fields, Keeping, asks, is_listed, object_fields

_DEVELOPER = "developer"
"""To the model it is a system message."""
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Whether the model's template has a role is for the template to say."""
_REASONING = ("reasoning_content", "reasoning")
"""Names that clients have for an assistant's reasoning; they are one text."""
_OF_ALL = frozenset({"role", "content", "name", "tool_calls", "function_call", "audio"})
_OF_ROLE = {"assistant": (*_REASONING, "reasoning_details", "refusal"), "tool": ("tool_call_id",)}
_DROPPED = ("annotations", "parsed", "provider_specific_fields", "thinking_blocks")
"""Fields that released clients send, of earlier answers for the most part, and that mean nothing here."""
_DROPPED_OF_ANSWER = (*_DROPPED, "images")
_PART, _CALL, _FUNCTION = (
    frozenset(names) for names in (("type", "text"), ("id", "type", "function"), ("name", "arguments"))
)
_FILE_PART = frozenset(("type", "file"))
_DROPPED_OF_PART = ("annotations", "extras", "id", "index")
MARKS_OF_PART = (CACHE_CONTROL, BREAKPOINT)
_DROPPED_OF_CALL = ("cache_control", "extra_content", "index", "provider_specific_fields")
_DROPPED_OF_FUNCTION = ("cache_control", "parsed_arguments", "provider_specific_fields")
MAX_NAME_CHARS = 64


def check_messages(value: Any) -> tuple[ChatMessage, ...]:
    """Check the ``messages`` parameter.

    Raises:
        BadRequest: says which entry is wrong, and how.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest("messages must be a non-empty list", param="messages")
    if len(value) > MAX_MESSAGES:
        raise BadRequest(f"messages may hold at most {MAX_MESSAGES} entries", param="messages")
    contents = [entry.get("content") for entry in value if isinstance(entry, dict)]
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_ALL_CONTENT_PARTS:
        raise BadRequest(f"messages may hold at most {MAX_ALL_CONTENT_PARTS} parts together", param="messages")
    budget = ValueBudget(MAX_CALL_VALUES, MAX_CALL_DEPTH)
    return tuple(_message(entry, f"messages[{index}]", budget) for index, entry in enumerate(value))


def with_marks(
    fields: Fields, messages: tuple[ChatMessage, ...], tools: ToolUse, keeping: Keeping = NO_KEEPING
) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    """Check all marks of a conversation together, and add the one that its body may have for its last message.

    Returns:
        The messages with that mark, and the fields that ask for something to be kept.

    Raises:
        BadRequest: there are more than a request may have.
    """
    last_ttl = fields.take_ttl(CACHE_CONTROL)
    if last_ttl is not None:
        last = messages[-1]
        messages = (*messages[:-1], replace(last, marks=(*last.marks, CacheMark(len(last.content), last_ttl))))
    num = sum(_is_counted(mark) for message in messages for mark in message.marks)
    num += sum(1 for tool in tools.tools if tool.keeps_s)
    if num > MAX_BREAKPOINTS:
        text = f"a request may have at most {MAX_BREAKPOINTS} cache breakpoints, and this one has {num}"
        raise BadRequest(text, param=CACHE_CONTROL)
    messages = latest_marks(_timed(messages, keeping.marks_ttl_s), MAX_BREAKPOINTS - num, _is_counted)
    names = [*marking_fields(messages)]
    names += [CACHE_CONTROL] * (tools.loses_marks or any(tool.keeps_s for tool in tools.tools))
    return messages, tuple(dict.fromkeys([*names, *keeping.fields]))


def marking_fields(messages: Iterable[ChatMessage]) -> Iterator[str]:
    """Fields of all marks in messages, in their order."""
    return (name for message in messages for mark in message.marks for name in mark.fields)


def latest_marks(
    messages: tuple[ChatMessage, ...], num: int, is_left: Callable[[CacheMark], bool] = lambda _: False
) -> tuple[ChatMessage, ...]:
    """Messages with the last ``num`` of their marks, besides those that are left in any case."""
    found = list[ChatMessage]()
    for message in reversed(messages):
        marks = list[CacheMark]()
        for mark in reversed(message.marks):
            if is_left(mark) or num > 0:
                marks.insert(0, mark)
                num -= not is_left(mark)
        found.append(message if len(marks) == len(message.marks) else replace(message, marks=tuple(marks)))
    return tuple(reversed(found))


def _is_counted(mark: CacheMark) -> bool:
    """Anthropic bounds the marks of a request; OpenAI takes the last ones of a conversation."""
    return CACHE_CONTROL in mark.fields


def _timed(messages: tuple[ChatMessage, ...], ttl_s: int) -> tuple[ChatMessage, ...]:
    """Messages whose breakpoints without a time have that of their request."""

    def timed(mark: CacheMark) -> CacheMark:
        return mark._replace(ttl_s=max(mark.ttl_s, ttl_s)) if mark.is_untimed else mark

    return tuple(replace(m, marks=tuple(map(timed, m.marks))) if m.marks else m for m in messages)


def ignored_in_messages(value: Any) -> tuple[str, ...]:
    """Names of fields in messages that mean nothing here, where they ask for something; of checked ``messages``."""
    found = dict[str, None]()
    for entry in value:
        found |= _given("messages", entry, _dropped(entry["role"]))
        content = entry.get("content")
        for part in content if isinstance(content, list) else ():
            if len(part) > len(_PART):
                found |= _given("messages.content", part, _DROPPED_OF_PART)
        if entry["role"] == "assistant":
            found |= {"messages.reasoning_details": None} if _has_unread_details(entry) else {}
            for call in entry.get("tool_calls") or ():
                found |= _given("messages.tool_calls", call, _DROPPED_OF_CALL)
                found |= _given("messages.tool_calls.function", call["function"], _DROPPED_OF_FUNCTION)
    return tuple(found)


def _given(path: str, entry: dict[str, Any], names: Iterable[str]) -> dict[str, None]:
    return {f"{path}.{name}": None for name in names if entry.get(name)}


def _dropped(role: str) -> tuple[str, ...]:
    """Pictures of an answer are history; those of a user ask to be seen."""
    return _DROPPED_OF_ANSWER if role == "assistant" else _DROPPED


def _has_unread_details(entry: dict[str, Any]) -> bool:
    """Some reasoning is no text, such as what another server has encrypted."""
    details = entry.get("reasoning_details")
    if not isinstance(details, list):
        return bool(details)
    return not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in details)


def _message(entry: Any, param: str, budget: ValueBudget) -> ChatMessage:
    if not isinstance(entry, dict):
        raise BadRequest(f"{param} must be an object", param=param)
    role = entry.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        text = f"{param}.role must be system, developer, user, assistant, tool or another name that the template knows"
        raise BadRequest(text, param=f"{param}.role")
    for name in ("function_call", "audio") if role == "assistant" else ("function_call", "audio", "tool_calls"):
        if entry.get(name):
            text = f"{param}.{name} is not supported by this server"
            raise BadRequest(text, param=f"{param}.{name}", code="unsupported_parameter")
    if rest := entry.keys() - _OF_ALL:
        _check_rest(entry, rest, (*_dropped(role), CACHE_CONTROL, *_OF_ROLE.get(role, ())), f"{param}.")
    calls = _calls(entry.get("tool_calls"), f"{param}.tool_calls", budget)
    content = entry.get("content")
    if content in (None, "") and role == "assistant":
        content = entry.get("refusal") or content
    told = MarkedText()
    if content is not None or not calls:
        _add_content(told, content, f"{param}.content")
    mark_part(told, entry, f"{param}.", (CACHE_CONTROL,))
    return ChatMessage(
        "system" if role == _DEVELOPER else role,
        told.text,
        tool_calls=calls,
        tool_call_id=check_call_id(entry.get("tool_call_id"), f"{param}.tool_call_id") if role == "tool" else "",
        reasoning=_reasoning(entry, param) if role == "assistant" else "",
        name=_name(entry.get("name"), f"{param}.name"),
        marks=told.marks,
    )


def _check_rest(entry: dict[str, Any], names: Iterable[str], known: Iterable[str], path: str) -> None:
    """Refuse fields that are none of the known ones and ask for something, as ``prefix`` does elsewhere."""
    fields = Fields({name: entry[name] for name in names if asks(entry[name])}, path)
    fields.ignore(*known)
    fields.end()


def mark_part(text: MarkedText, part: dict[str, Any], path: str, names: Iterable[str] = MARKS_OF_PART) -> None:
    """Mark the end of what is there as the fields of these names say; raises ``BadRequest`` where they are no marks."""
    if given := {name: part[name] for name in names if name in part and asks(part[name])}:
        untimed = isinstance(own := given.get(BREAKPOINT), dict) and own.get("ttl") is None
        text.mark(Fields(given, path).take_ttl(*given), tuple(given), is_untimed=untimed)


def _name(value: Any, param: str) -> str:
    if value is not None and (not isinstance(value, str) or len(value) > MAX_NAME_CHARS):
        if is_listed(param):
            return ""
        raise BadRequest(f"{param} must be a string of at most {MAX_NAME_CHARS} characters", param=param)
    return value or ""


def _calls(value: Any, param: str, budget: ValueBudget) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest(f"{param} must be a list", param=param)
    if len(value) > MAX_MESSAGE_CALLS:
        raise BadRequest(f"{param} may hold at most {MAX_MESSAGE_CALLS} calls", param=param)
    return tuple(_call(entry, f"{param}[{index}]", budget) for index, entry in enumerate(value))


def _call(value: Any, param: str, budget: ValueBudget) -> ToolCall:
    fields = object_fields(value, param)
    call_id, kind, function = (
        check_call_id(fields.take("id"), f"{param}.id"),
        fields.take("type"),
        fields.take("function"),
    )
    if kind not in (None, "function"):
        raise BadRequest(f"{param}.type must be function", param=f"{param}.type", code="unsupported_parameter")
    within = object_fields(function, f"{param}.function")
    name = check_called_name(within.take("name"), f"{param}.function.name")
    arguments = within.take("arguments")
    if rest := function.keys() - _FUNCTION:
        _check_rest(function, rest, _DROPPED_OF_FUNCTION, f"{param}.function.")
    if rest := value.keys() - _CALL:
        _check_rest(value, rest, _DROPPED_OF_CALL, f"{param}.")
    return ToolCall(call_id, name, check_arguments(arguments, f"{param}.function.arguments", budget))


def check_arguments(value: Any, param: str, budget: ValueBudget) -> str:
    """Check the arguments of a call, which are JSON text; what a model has left unfinished goes back as it is, and so
    does all else that no half of a surrogate pair is spelled in."""
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a string", param=param)
    if not value.strip():
        return "{}"
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    except RecursionError:
        raise BadRequest(f"{param} is nested deeper than {MAX_CALL_DEPTH} levels", param=param) from None
    budget.check(parsed, param)
    if "\\u" not in value:
        return value
    spelled = json.dumps(parsed, ensure_ascii=False)
    whole = whole_characters(spelled)
    return value if whole == spelled else whole


def check_call_id(value: Any, param: str) -> str:
    """Check the id of a call."""
    if not isinstance(value, str) or not value or len(value) > MAX_CALL_ID_CHARS:
        raise BadRequest(f"{param} must be a string of 1 to {MAX_CALL_ID_CHARS} characters", param=param)
    return value


def left_out_note(kind: str) -> str:
    """Text that the model reads in the place of an image or a file that a tool has made."""
    return f"[{kind} left out: this model reads text alone]"


def _reasoning(entry: dict[str, Any], param: str) -> str:
    """Earlier reasoning under any of its names."""
    given = [(name, entry[name]) for name in _REASONING if entry.get(name) is not None]
    for name, text in given:
        if not isinstance(text, str):
            raise BadRequest(f"{param}.{name} must be a string", param=f"{param}.{name}")
    details = entry.get("reasoning_details")
    if not given and isinstance(details, list):
        texts = [part.get("text") for part in details if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return str(given[0][1]) if given else ""


def _add_content(text: MarkedText, value: Any, param: str) -> None:
    if isinstance(value, str):
        text.add(value)
        return
    if not isinstance(value, list) or not value:
        raise BadRequest(f"{param} must be a string or a non-empty list of parts", param=param)
    if len(value) > MAX_CONTENT_PARTS:
        raise BadRequest(f"{param} may hold at most {MAX_CONTENT_PARTS} parts", param=param)
    for index, part in enumerate(value):
        where = f"{param}[{index}]"
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise BadRequest(f"{where} must be an object with a type", param=where)
        text.add(_part_text(part, where))
        mark_part(text, part, f"{where}.")


def _part_text(part: dict[str, Any], where: str) -> str:
    """Text of one part; a file is read where it is text."""
    known = _FILE_PART if part["type"] == "file" else _PART
    if part["type"] not in ("text", "file"):
        text = f"{where}: only parts of type text, and files of text, are supported"
        raise BadRequest(text, param=where, code="unsupported_parameter")
    if known is _PART and not isinstance(part.get("text"), str):
        raise BadRequest(f"{where}.text must be a string", param=f"{where}.text")
    if len(part) > len(known):
        _check_rest(part, part.keys() - known, (*_DROPPED_OF_PART, *MARKS_OF_PART), f"{where}.")
    return read_file(part.get("file"), f"{where}.file") if known is _FILE_PART else str(part["text"])


def read_file(value: Any, param: str) -> str:
    """Text that the model reads of a file, which comes within its request.

    Raises:
        BadRequest: malformed, no text, or somewhere else, with ``param``.
    """
    fields = object_fields(value, param)
    data, title = fields.take("file_data"), check_title(fields.take("filename"), f"{param}.filename")
    for name in ("file_id", "file_url"):
        fields.refuse(name, "")
    fields.end()
    return document_text(title, read_data_url(data, f"{param}.file_data"))
