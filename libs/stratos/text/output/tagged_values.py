"""Arguments whose values are written as plain text between tags: the JSON object that they are.

A value has no type of its own, so the function's schema gives it: a text is shown as it comes, anything else once it is
complete.  A value that is JSON is that JSON, unless the schema has texts and not its type; any other is a text.  The
first end tag ends a value, unless it stands in a text of JSON.
"""

from __future__ import annotations

import json
import re

from stratos.text.output.json_text import is_json
from stratos.text.output.notation.schemas import is_free, is_text, told_types
from stratos.text.output.reader import BLANKS, MalformedCall, Marks, Reading, TextReader, take_until
from stratos.text.output.syntax import CallCount, Schema

_NO_BLANK = re.compile(f"[^{BLANKS}]")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_KINDS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
"""Type of a JSON value by its first character; all others begin numbers."""


class TaggedArguments:
    """The arguments of one call as they are written.

    Args:
        calls: the call is open.
        function: its name.
        line_breaks: values stand on lines of their own: one line break before and after is none of theirs.
    """

    def __init__(self, calls: CallCount, function: str, *, line_breaks: bool) -> None:
        self._calls = calls
        self._function = function
        self._line_breaks = line_breaks
        self._opening = "{"

    def read(self, reader: TextReader, name: str, end: str) -> Reading[None]:
        """Read one value up to ``end``, which is taken; raises ``MalformedCall`` where the text ends before."""
        schema = self._calls.property_schema(self._function, name)
        yield self._calls.arguments(f"{self._opening}{json.dumps(name, ensure_ascii=False)}: ")
        self._opening = ", "
        if is_text(schema):
            yield from self._read_text(reader, end)
            return
        text = yield from (take_until(reader, end) if is_free(schema) else _value_until(reader, end))
        if self._line_breaks:
            text = text.removeprefix("\n").removesuffix("\n")
        yield self._calls.arguments(as_json(text, schema))

    def close(self) -> str:
        """The rest of the object's text."""
        return "{}" if self._opening == "{" else "}"

    def _read_text(self, reader: TextReader, end: str) -> Reading[None]:
        marks, is_begun = Marks((end,)), not self._line_breaks
        yield self._calls.arguments('"')
        while (found := marks.find(reader.text)) is None:
            held = marks.num_begun(reader.text)
            if self._line_breaks and reader.text[: len(reader.text) - held].endswith("\n"):
                held += 1
            if reader.is_ended:
                held = 0
            is_begun = yield from self._show(reader, len(reader.text) - held, is_begun=is_begun)
            if reader.is_ended:
                raise MalformedCall
            yield None
        length = found.start()
        if self._line_breaks and reader.text[:length].endswith("\n"):
            length -= 1
        yield from self._show(reader, length, is_begun=is_begun)
        reader.take(found.end() - length)
        yield self._calls.arguments('"')

    def _show(self, reader: TextReader, length: int, *, is_begun: bool) -> Reading[bool]:
        """Show so much of a text as JSON; returns whether it has begun, after which a line break is its own."""
        if length <= 0:
            return is_begun
        text = reader.take(length)
        if not is_begun:
            text = text.removeprefix("\n")
        if text:
            yield self._calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        return True


def _value_until(reader: TextReader, end: str) -> Reading[str]:
    """Take a value and the spelling that ends it, which a text of its JSON may hold; raises like ``take_until``."""
    length = yield from _json_length(reader, end)
    if length is None:
        return (yield from take_until(reader, end))
    value = reader.take(length)
    reader.take(len(end))
    return value


def _json_length(reader: TextReader, end: str) -> Reading[int | None]:
    """Length of a text, list or object of JSON up to ``end`` behind it; ``None`` for anything else."""
    begin = yield from _after_blanks(reader, 0)
    if reader.text[begin : begin + 1] not in ('"', "[", "{"):
        return None
    place, depth, is_inside = begin, 0, False
    marks = re.compile(rf'["\\\[\]{{}}\x00-\x1f]|{re.escape(end)}')
    while True:
        while (found := marks.search(reader.text, place)) is not None:
            mark, place = found.group(), found.end()
            if mark == '"':
                is_inside = not is_inside
            elif is_inside and mark < " ":
                return None  # no text of JSON holds it as it is
            elif is_inside:
                place += mark == "\\"
                continue
            elif mark == end:
                return found.start()
            else:
                depth += (mark in "[{") - (mark in "]}")
            if mark in '"]}' and not is_inside and depth <= 0:
                return (yield from _if_next(reader, place, end))
        if reader.is_ended:
            return None
        place = max(place, len(reader.text) - len(end) + 1)
        yield None


def _after_blanks(reader: TextReader, place: int) -> Reading[int]:
    """The place of the next character that is no blank, or of the end."""
    while (found := _NO_BLANK.search(reader.text, place)) is None and not reader.is_ended:
        place = len(reader.text)
        yield None
    return len(reader.text) if found is None else found.start()


def _if_next(reader: TextReader, place: int, end: str) -> Reading[int | None]:
    """Where ``end`` stands, if nothing but blanks is before it."""
    place = yield from _after_blanks(reader, place)
    while not reader.is_ended and len(reader.text) - place < len(end) and end.startswith(reader.text[place:]):
        yield None
    return place if reader.text.startswith(end, place) else None


def as_json(text: str, schema: Schema) -> str:
    """A value as JSON: as it is, where it is JSON of its own and of a type that the schema has."""
    plain = text.strip()
    if schema.get("type") in ("boolean", "null") or plain in _WORDS:
        plain = _WORDS.get(plain, plain)
    return plain if is_json(plain) and not _is_text_alone(plain, schema) else json.dumps(text, ensure_ascii=False)


def _is_text_alone(plain: str, schema: Schema) -> bool:
    """Whether the value may be a text, and not what it looks like: ``12345`` where it is a text or null."""
    kinds = told_types(schema)
    return kinds is not None and "string" in kinds and _KINDS.get(plain[0], "number") not in kinds
