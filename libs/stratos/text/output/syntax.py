"""The contract of a syntax: how a family of models writes its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratos.text.output.events import CallArguments, CallBegin, CallEnd, OutputEvent
from stratos.text.output.reader import Reading, TextReader


class CallCount:
    """Calls of one choice so far; makes their events."""

    __slots__ = ("index", "is_open")

    def __init__(self) -> None:
        self.index = -1
        self.is_open = False
        """The last one has begun and not ended."""

    def begin(self, name: str) -> CallBegin:
        """The next call."""
        self.index, self.is_open = self.index + 1, True
        return CallBegin(self.index, name)

    def arguments(self, text: str) -> OutputEvent:
        """More of the arguments of the call that is open."""
        return CallArguments(self.index, text)

    def end(self, *, is_complete: bool = True) -> CallEnd:
        """The end of the call that is open."""
        self.is_open = False
        return CallEnd(self.index, is_complete)


ReadCalls = Callable[[TextReader, str, CallCount], Reading[None]]
"""Reads what follows a mark, the mark being taken; raises ``MalformedCall`` where it is no call, or breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """One family's way to write calls."""

    name: str
    marks: tuple[str, ...]
    """Spellings that begin calls, wherever they stand; none begins with another one."""
    read: ReadCalls
    special: tuple[str, ...] = ()
    """Spellings in it that are special tokens where the tokenizer has them: they are shown to the reader."""
