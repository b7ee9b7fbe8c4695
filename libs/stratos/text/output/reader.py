"""Text that arrives in pieces, and what is common to all that read it.

A reading is a generator: it yields events, and ``None`` where it needs more text.  It looks at the text that is there,
takes what it has understood, and waits for the rest, so its events depend on the text alone.  Plain text never waits,
except for what may be the beginning of a mark, and for blanks, which belong to a mark if one follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from stratos.text.output.events import OutputEvent

T = TypeVar("T")
Reading = Generator[OutputEvent | None, None, T]
"""Yields events, and ``None`` for "more text is needed"."""
BLANKS = " \t\r\n"


class MalformedCall(Exception):
    """The text is not in the form that its beginning promised."""


class TextReader:
    """Text of one choice that no reading has taken yet."""

    __slots__ = ("is_ended", "kept", "text")

    def __init__(self) -> None:
        self.text = ""
        self.is_ended = False
        self.kept: list[str] | None = None
        """Everything that was taken since it was set to a list: shown as it is where it turns out to be no call."""

    def take(self, length: int) -> str:
        """Take so many characters from the beginning."""
        piece, self.text = self.text[:length], self.text[length:]
        if self.kept is not None and piece:
            self.kept.append(piece)
        return piece


class Marks:
    """Spellings of which the earliest one in a text is looked for; none begins with another one."""

    def __init__(self, spellings: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, spellings)) if spellings else r"(?!)")
        self._spellings = tuple(spellings)
        self._longest = max(map(len, spellings), default=0)
        self._first_chars = {spelling[0] for spelling in spellings}

    def find(self, text: str) -> re.Match[str] | None:
        """The earliest mark."""
        return self._pattern.search(text)

    def num_held(self, text: str) -> int:
        """Length of the end of a text that may become a mark, with the blanks before it."""
        return len(text) - len(text[: len(text) - self.num_begun(text)].rstrip(BLANKS))

    def num_begun(self, text: str) -> int:
        """Length of the end of a text that may become a mark."""
        if self._first_chars.isdisjoint(text[-self._longest :]):
            return 0  # as nearly always
        longest = 0
        for mark in self._spellings:
            for length in range(min(len(mark) - 1, len(text)), longest, -1):
                if text.endswith(mark[:length]):
                    longest = length
                    break
        return longest


def text_until(reader: TextReader, marks: Marks, show: Callable[[str], OutputEvent]) -> Reading[str]:
    """Show text up to a mark, which is taken together with the blanks before it; "" at the end of the text.

    From here on ``kept`` has what the mark and its blanks were.
    """
    reader.kept = None
    while (found := marks.find(reader.text)) is None:
        held = 0 if reader.is_ended else marks.num_held(reader.text)
        if shown := reader.take(len(reader.text) - held):
            yield show(shown)
        if reader.is_ended:
            return ""
        yield None
    if shown := reader.take(len(reader.text[: found.start()].rstrip(BLANKS))):
        yield show(shown)
    reader.kept = []
    reader.take(found.end() - len(shown))
    return found.group()


def skip_blanks(reader: TextReader) -> Reading[None]:
    """Take blanks up to the next other character, or to the end."""
    while True:
        reader.take(len(reader.text) - len(reader.text.lstrip(BLANKS)))
        if reader.text or reader.is_ended:
            return
        yield None


def next_char(reader: TextReader) -> Reading[str]:
    """The next character, which stays; raises ``MalformedCall`` at the end."""
    while not reader.text:
        if reader.is_ended:
            raise MalformedCall
        yield None
    return reader.text[0]


def expect(reader: TextReader, char: str) -> Reading[None]:
    """Take one character after blanks.

    Raises:
        MalformedCall: another one comes, or none; it stays.
    """
    yield from skip_blanks(reader)
    if (yield from next_char(reader)) != char:
        raise MalformedCall
    reader.take(1)


def take_if_next(reader: TextReader, spelling: str) -> Reading[bool]:
    """Take a spelling where it comes next, after blanks."""
    yield from skip_blanks(reader)
    while not reader.is_ended and len(reader.text) < len(spelling) and spelling.startswith(reader.text):
        yield None
    is_next = reader.text.startswith(spelling)
    if is_next:
        reader.take(len(spelling))
    return is_next


def take_until(reader: TextReader, end: str) -> Reading[str]:
    """Take the text before a spelling, and the spelling; raises ``MalformedCall`` where the text ends before."""
    begin = 0
    while (found := reader.text.find(end, begin)) < 0:
        if reader.is_ended:
            raise MalformedCall
        begin = max(0, len(reader.text) - len(end) + 1)
        yield None
    text = reader.take(found)
    reader.take(len(end))
    return text
