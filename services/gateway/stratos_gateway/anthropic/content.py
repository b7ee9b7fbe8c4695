"""Messages of blocks -> the messages of a chat, in the order in which a template wants them.

A text may be a string or blocks, a system message may stand anywhere, and neighbours of one role become one message,
as this API has it.  Blocks that hold no text are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.documents import check_title, document_text
from stratos.core.requests.limits import MAX_ALL_CONTENT_PARTS, MAX_CONTENT_PARTS, MAX_MESSAGES
from stratos.core.requests.pins import CACHE_CONTROL
from stratos.core.requests.tools import (
    MAX_CALL_DEPTH,
    MAX_CALL_VALUES,
    MAX_MESSAGE_CALLS,
    ToolCall,
    ValueBudget,
    check_called_name,
)
from stratos.text.chat_template import ChatMessage
from stratos.text.marked_text import MarkedText
from stratos_gateway.anthropic.notices import Ignored
from stratos_gateway.openai.fields import Fields, object_fields
from stratos_gateway.openai.messages import check_call_id, left_out_note

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_BETWEEN = "\n\n"
"""Text between two blocks of one message, and between neighbours of one role."""
_BILLING_LINE = re.compile(r"\A\s*x-anthropic-billing-header:[^\n]*\n*")
"""Line that a coding agent writes before its system text: it differs in every request, so no prefix would be found."""
_LEFT_OUT = ("image", "document")
"""Blocks of a tool's result that a note stands for where they are no text: tools make them unasked."""
_ERROR_RESULT = "Error: "
"""Begins the result of a call that failed: templates have no field for it."""


@dataclass(slots=True)
class MessageReader:
    """Reads the messages of one request.

    Args:
        ignored: takes the names of fields that mean nothing here.
    """

    ignored: Ignored
    budget: ValueBudget
    num_blocks: int = 0
    """Blocks so far, those within others included."""

    def read(self, system: Any, messages: Any) -> tuple[ChatMessage, ...]:
        """Check ``system`` and ``messages``.

        Raises:
            BadRequest: says which entry is wrong, and how.
        """
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a non-empty list", param="messages")
        if len(messages) > MAX_MESSAGES:
            raise BadRequest(f"messages may hold at most {MAX_MESSAGES} entries", param="messages")
        contents = [entry.get("content") for entry in messages if isinstance(entry, dict)]
        _check_blocks(sum(len(content) for content in contents if isinstance(content, list)))
        found = [] if system is None else [_message("system", self._system(system, "system"))]
        for index, entry in enumerate(messages):
            found += self._message(entry, f"messages[{index}]")
        return _joined(found)

    def _message(self, entry: Any, param: str) -> list[ChatMessage]:
        fields = object_fields(entry, param)
        role, content = fields.take("role"), fields.take("content")
        fields.end()
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRequest(f"{param}.role must be one of {', '.join(_ROLES)}", param=f"{param}.role")
        if _ROLES[role] == "system":
            return [_message("system", self._system(content, f"{param}.content"))]
        blocks = self._blocks(content, f"{param}.content")
        return self._answer(blocks) if role == "assistant" else self._question(blocks)

    def _system(self, value: Any, param: str) -> MarkedText:
        texts = MarkedText(_BETWEEN)
        for fields, kind, where in self._blocks(value, param):
            text, ttl_s = self._text_alone(fields, kind, where)
            if (line := _BILLING_LINE.match(text)) is not None:
                self.ignored.add("x-anthropic-billing-header")
                text = text[line.end() :]
            if text:
                texts.add(text)
            texts.mark(ttl_s)
        return texts

    def _question(self, blocks: Sequence[tuple[Fields, str, str]]) -> list[ChatMessage]:
        """Texts of the user, and results of calls, in their order."""
        found, texts = list[ChatMessage](), MarkedText(_BETWEEN)
        for fields, kind, where in blocks:
            match kind:
                case "text":
                    texts.add(*self._text(fields, where))
                case "document":
                    texts.add(*self._document(fields, fields.take("source"), where))
                case "tool_result":
                    found += _user(texts)
                    texts = MarkedText(_BETWEEN)
                    found.append(self._result(fields, where))
                case _:
                    raise _refused(kind, where)
        return found + _user(texts, is_due=not found)

    def _answer(self, blocks: Sequence[tuple[Fields, str, str]]) -> list[ChatMessage]:
        """Text, thinking and calls of an earlier answer, which are one message."""
        texts, thinking, calls = MarkedText(_BETWEEN), list[str](), list[ToolCall]()
        for fields, kind, where in blocks:
            match kind:
                case "text":
                    texts.add(*self._text(fields, where))
                case "thinking":
                    thinking.append(_string(fields, "thinking", where))
                    fields.ignore("signature")
                    self._end_unmarked(fields)
                case "redacted_thinking":
                    fields.ignore("data")
                    self.ignored.add("redacted_thinking")
                    self._end_unmarked(fields)
                case "tool_use":
                    call, ttl_s = self._call(fields, where)
                    calls.append(call)
                    texts.mark(ttl_s)  # templates write calls behind the text: what is before them is kept
                case _:
                    raise _refused(kind, where)
        if len(calls) > MAX_MESSAGE_CALLS:
            raise BadRequest(f"a message may hold at most {MAX_MESSAGE_CALLS} tool_use blocks", param="messages")
        return [replace(_message("assistant", texts), tool_calls=tuple(calls), reasoning=_BETWEEN.join(thinking))]

    def _call(self, fields: Fields, where: str) -> tuple[ToolCall, int | None]:
        call_id = check_call_id(fields.take("id"), f"{where}.id")
        name, given = check_called_name(fields.take("name"), f"{where}.name"), fields.take("input")
        fields.refuse("caller", {"type": "direct"})
        ttl_s = self._end(fields)
        if given is not None and not isinstance(given, dict):
            raise BadRequest(f"{where}.input must be an object", param=f"{where}.input")
        self.budget.check(given or {}, f"{where}.input")
        return ToolCall(call_id, name, json.dumps(given or {}, ensure_ascii=False)), ttl_s

    def _result(self, fields: Fields, where: str) -> ChatMessage:
        call_id = check_call_id(fields.take("tool_use_id"), f"{where}.tool_use_id")
        content, is_error = fields.take("content"), fields.flag("is_error")
        ttl_s, texts = self._end(fields), MarkedText(_BETWEEN)
        for within, kind, place in self._blocks("" if content is None else content, f"{where}.content"):
            texts.add(*self._result_text(within, kind, place))
        told = MarkedText()
        told.add(_ERROR_RESULT if is_error else "")
        told.add(texts.text, ttl_s, texts.marks)
        return replace(_message("tool", told), tool_call_id=call_id)

    def _result_text(self, fields: Fields, kind: str, where: str) -> tuple[str, int | None]:
        """Text of one block of a result; the model is told of what it cannot be shown."""
        source = fields.take("source") if kind == "document" else None
        if isinstance(source, dict) and source.get("type") == "text":
            return self._document(fields, source, where)
        if kind in _LEFT_OUT:
            self.ignored.add(f"tool_result.{kind}")
            return left_out_note(kind), fields.take_ttl(CACHE_CONTROL)
        return self._text_alone(fields, kind, where)

    def _text(self, fields: Fields, where: str) -> tuple[str, int | None]:
        """Text of a block, and the seconds of its mark."""
        text = _string(fields, "text", where)
        fields.refuse("citations", [])
        return text, self._end(fields)

    def _document(self, fields: Fields, source: Any, where: str) -> tuple[str, int | None]:
        """A document of text, under its title and what the client says of it."""
        title, about = check_title(fields.take("title"), f"{where}.title"), fields.take_text("context")
        fields.refuse("citations", {"enabled": False}, {})
        ttl_s = self._end(fields)
        text = self._source_text(object_fields(source, f"{where}.source"), f"{where}.source")
        return document_text(title, f"{about}{_BETWEEN}{text}" if about else text).strip("\n"), ttl_s

    def _source_text(self, fields: Fields, where: str) -> str:
        kind = fields.take("type")
        if kind == "text":
            text = _string(fields, "data", where)
            fields.refuse("media_type", "text/plain")
            fields.end()
            return text
        if kind != "content":
            text = f"{where}.type: only documents of text are supported: text, and content of text blocks"
            raise BadRequest(text, param=f"{where}.type", code="unsupported_parameter")
        blocks = self._blocks(fields.take("content"), f"{where}.content")
        fields.end()
        texts = MarkedText(_BETWEEN)
        for block in blocks:
            texts.add(*self._text_alone(*block))
        if texts.marks:
            self.ignored.add(CACHE_CONTROL)
        return texts.text

    def _text_alone(self, fields: Fields, kind: str, where: str) -> tuple[str, int | None]:
        if kind != "text":
            raise _refused(kind, where)
        return self._text(fields, where)

    def _blocks(self, value: Any, param: str) -> list[tuple[Fields, str, str]]:
        """Fields, type and place of each block; a string is one block of text."""
        if isinstance(value, str):
            return [(Fields({"text": value}), "text", param)]
        if not isinstance(value, list):
            raise BadRequest(f"{param} must be a string or a list of blocks", param=param)
        if len(value) > MAX_CONTENT_PARTS:
            raise BadRequest(f"{param} may hold at most {MAX_CONTENT_PARTS} blocks", param=param)
        self.num_blocks += len(value)
        _check_blocks(self.num_blocks)
        found = []
        for index, block in enumerate(value):
            where = f"{param}[{index}]"
            fields = object_fields(block, where)
            kind = fields.take("type")
            if not isinstance(kind, str):
                raise BadRequest(f"{where}.type must be a string", param=f"{where}.type")
            found.append((fields, kind, where))
        return found

    def _end(self, fields: Fields) -> int | None:
        """Refuse what was not read; returns the seconds of the block's mark."""
        ttl_s = fields.take_ttl(CACHE_CONTROL)
        fields.end()
        return ttl_s

    def _end_unmarked(self, fields: Fields) -> None:
        """The same of a block that is not kept: templates drop earlier thinking."""
        if self._end(fields) is not None:
            self.ignored.add(CACHE_CONTROL)


def message_reader(ignored: Ignored) -> MessageReader:
    """A reader for one request."""
    return MessageReader(ignored, ValueBudget(MAX_CALL_VALUES, MAX_CALL_DEPTH))


MAX_NAME_CHARS = 128
"""Of a tool: more than in the API of chats, which these names never see."""


def _check_blocks(number: int) -> None:
    if number > MAX_ALL_CONTENT_PARTS:
        raise BadRequest(f"messages may hold at most {MAX_ALL_CONTENT_PARTS} blocks together", param="messages")


def _string(fields: Fields, name: str, where: str) -> str:
    value = fields.take(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name} must be a string", param=f"{where}.{name}")
    return value


def _message(role: str, text: MarkedText) -> ChatMessage:
    return ChatMessage(role, text.text, marks=text.marks)


def _user(texts: MarkedText, *, is_due: bool = False) -> list[ChatMessage]:
    return [_message("user", texts)] if texts or is_due else []


def _refused(kind: str, where: str) -> BadRequest:
    text = f"{where}: blocks of type {kind[:40]!r} are not supported here"
    return BadRequest(text, param=where, code="unsupported_parameter")


def _joined(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Neighbours of one role as one message; results stay by themselves, and nothing follows calls in a message."""
    groups = list[list[ChatMessage]]()
    for message in messages:
        last = groups[-1][-1] if groups else None
        is_same = last is not None and last.role == message.role != "tool"
        if last is not None and is_same and not last.tool_calls:
            groups[-1].append(message)
        else:
            groups.append([message])
    return tuple(group[0] if len(group) == 1 else _one(group) for group in groups)


def _one(group: Sequence[ChatMessage]) -> ChatMessage:
    """Neighbours as one message, put together in time that grows with their texts and no faster."""
    content, reasoning = MarkedText(_BETWEEN), _BETWEEN.join(filter(None, (m.reasoning for m in group)))
    for message in group:
        if message.content:
            content.add(message.content, marks=message.marks)
            continue
        for mark in message.marks:
            content.mark(mark.ttl_s, mark.fields)
    return replace(group[-1], content=content.text, reasoning=reasoning, marks=content.marks)
