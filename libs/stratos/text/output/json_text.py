"""JSON values as text, taken as they are written: a call's arguments reach the client byte for byte.

Strings and brackets are followed, numbers and words are taken up to what ends them; whether the whole is valid is for
its reader to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn

from stratos.text.output.events import OutputEvent
from stratos.text.output.reader import MalformedCall, Reading, TextReader, next_char, skip_blanks

_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_INSIDE = re.compile(r'[^"\\]*')
_WORD_END = re.compile(r"[,\]}: \t\r\n]")
MAX_NAME_CHARS = 1024
"""Longest string, number or word that is waited for as a whole, such as a name."""


def json_value(reader: TextReader, show: Callable[[str], OutputEvent] | None = None) -> Reading[str]:
    """Take one value after blanks.

    Args:
        reader: of the text.
        show: makes events of its pieces as they come; ``None`` shows nothing.

    Returns:
        Its text.

    Raises:
        MalformedCall: the text ends within it, or something else comes.
    """
    yield from skip_blanks(reader)
    first = yield from next_char(reader)
    taken, scan = list[str](), _Scan()
    if first not in '"{[':
        return (yield from _word(reader, show))
    while True:
        piece = reader.take(scan.advance(reader.text))
        taken.append(piece)
        if piece and show is not None:
            yield show(piece)
        if scan.is_over:
            return "".join(taken)
        if reader.is_ended:
            raise MalformedCall
        yield None


def json_string(reader: TextReader) -> Reading[str]:
    """Take a short string after blanks and decode it; raises ``MalformedCall``."""
    yield from skip_blanks(reader)
    if (yield from next_char(reader)) != '"':
        raise MalformedCall
    scan, text = _Scan(), ""
    while not scan.is_over:
        while not reader.text:
            if reader.is_ended:
                raise MalformedCall
            yield None
        if len(text) == MAX_NAME_CHARS:
            raise MalformedCall
        text += reader.take(scan.advance(reader.text[: MAX_NAME_CHARS - len(text)]))
    return decoded_string(text)


def decoded_string(text: str) -> str:
    """The string that JSON text stands for; raises ``MalformedCall``."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        raise MalformedCall from None
    if not isinstance(value, str):
        raise MalformedCall
    return whole_characters(value)


def whole_characters(text: str) -> str:
    """A text whose halves of surrogate pairs, which escapes can spell, are U+FFFD: nothing could be made of it else."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_json(text: str) -> bool:
    """Whether a text is JSON as its standard has it, without ``NaN`` and ``Infinity``."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _word(reader: TextReader, show: Callable[[str], OutputEvent] | None) -> Reading[str]:
    """A number, ``true``, ``false`` or ``null``; shown at its end."""
    while (found := _WORD_END.search(reader.text, 0, MAX_NAME_CHARS)) is None:
        if reader.is_ended or len(reader.text) >= MAX_NAME_CHARS:
            raise MalformedCall
        yield None
    if not found.start():
        raise MalformedCall
    text = reader.take(found.start())
    if show is not None:
        yield show(text)
    return text


class _Scan:
    """Place within a string, an object or an array."""

    __slots__ = ("_depth", "_is_escaped", "_is_inside", "is_over")

    def __init__(self) -> None:
        self._depth = 0
        self._is_inside = False
        self._is_escaped = False
        self.is_over = False

    def advance(self, text: str) -> int:
        """Number of characters of ``text`` that belong to the value."""
        place, size = 0, len(text)
        while place < size and not self.is_over:
            if self._is_escaped:
                self._is_escaped, place = False, place + 1
                continue
            pattern = _INSIDE if self._is_inside else _OUTSIDE
            match = pattern.match(text, place)
            assert match is not None, "it matches nothing at all, too"
            place = match.end()
            if place < size:
                self._step(text[place])
                place += 1
        return place

    def _step(self, char: str) -> None:
        if char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_inside = not self._is_inside
        else:
            self._depth += 1 if char in "{[" else -1
        self.is_over = not (self._depth or self._is_inside)
