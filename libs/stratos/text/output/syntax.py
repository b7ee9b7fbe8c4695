"""The contract of a syntax: how a family of models writes its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stratos.text.output.events import CallArguments, CallBegin, CallEnd, OutputEvent
from stratos.text.output.notation.arguments import Arguments, json_arguments
from stratos.text.output.reader import Reading, TextReader

Schema = Mapping[str, Any]


class CallCount:
    """Calls of one choice so far; makes their events.

    Args:
        schemas: of the arguments, by function, for syntaxes that write values without their types.
    """

    __slots__ = ("_schemas", "index", "is_open")

    def __init__(self, schemas: Mapping[str, Schema] | None = None) -> None:
        self._schemas = schemas or {}
        self.index = -1
        self.is_open = False
        """The last one has begun and not ended."""

    def property_schema(self, function: str, name: str) -> Schema:
        """Schema of one argument of a function; empty where there is none."""
        schema = self._schemas.get(function, {})
        properties = schema.get("properties")
        found = properties.get(name) if isinstance(properties, dict) else None
        found = schema.get("additionalProperties") if found is None else found
        return found if isinstance(found, dict) else {}

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


ReadFrame = Callable[[TextReader, CallCount], Reading[None]]
"""Reads all of an output; raises nothing."""
ReadCalls = Callable[[TextReader, str, CallCount], Reading[None]]
"""Reads what follows a mark, the mark being taken; raises ``MalformedCall`` where it is no call, or breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameForm:
    """Messages of an output that is framed as a whole: each has an opening, a text and an end."""

    reasoning: str
    """Opening of a message of reasoning."""
    texts: tuple[str, ...]
    """Openings of messages of text, the last one of the answer's."""
    end: str
    following: str
    """Text between two messages."""
    barred: tuple[str, ...]
    """Spellings that end a message as well, so no text may hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """Calls as they are written where they are enforced: the arguments stand between two texts."""

    before: str
    """Text of a call up to its arguments, with ``{name}`` in place of its name."""
    after: str
    between: str
    """Text between two calls."""
    opening: str = ""
    """Text before the first call of several that belong together."""
    closing: str = ""
    arguments: Arguments = json_arguments
    """How the arguments are written."""
    unlike: str = ""
    """Regular expression of how a text begins that is read as a call, where calls begin an answer without a mark."""
    frame: FrameForm | None = None
    """The messages beside calls, where the whole output is framed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """One family's way to write calls."""

    name: str
    marks: tuple[str, ...]
    """Spellings that begin calls, wherever they stand; none begins with another one."""
    read: ReadCalls
    form: CallForm
    """How calls are written where they are enforced."""
    frame: ReadFrame | None = None
    """Reads outputs of this family as a whole, calls or not; else only calls are in this syntax."""
    starts_with: str = ""
    """Characters of which one begins a call without any mark, at the very beginning of an answer."""
    call_id_chars: int = 0
    """Length that the template wants a call's id to have; 0 takes any."""
    special: tuple[str, ...] = ()
    """Spellings in it that are special tokens where the tokenizer has them: they are shown to the reader."""
