"""The parser of one choice: pieces of its text in, events out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stratos.text.output.events import OutputEvent, ReasoningDelta, TextDelta
from stratos.text.output.reader import MalformedCall, Marks, Reading, TextReader, skip_blanks, take_if_next, text_until
from stratos.text.output.syntax import CallCount, CallSyntax, ReadFrame, Schema


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """Tags around the reasoning that comes before an answer."""

    begin: str
    end: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShape:
    """Forms that are looked for in an output."""

    syntax: CallSyntax | None = None
    """Form of its calls; ``None`` where the request has no tools."""
    reasoning: ReasoningTags | None = None
    frame: ReadFrame | None = None
    """Reads the whole output, where everything in it is framed; the other forms are then not looked for."""
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas of the functions' arguments, by name."""
    is_reasoning: bool = False
    """The prompt ends within the reasoning, so the output begins there."""

    @property
    def has_reasoning(self) -> bool:
        """Reasoning is told apart."""
        return self.reasoning is not None or self.frame is not None


class OutputParser:
    """State of one choice.

    The events of all pieces, texts put together, are those of the whole text.

    Args:
        shape: shared.
    """

    __slots__ = ("_reader", "_reading")

    def __init__(self, shape: OutputShape) -> None:
        self._reader = TextReader()
        self._reading = _read(self._reader, shape)

    def feed(self, text: str) -> list[OutputEvent]:
        """Events that are certain after this piece."""
        self._reader.text += text
        return self._events()

    def finish(self) -> list[OutputEvent]:
        """The rest, at the end of the text."""
        self._reader.is_ended = True
        return self._events()

    def _events(self) -> list[OutputEvent]:
        events = list[OutputEvent]()
        for event in self._reading:
            if event is None:
                break
            events.append(event)
        return events


def _read(reader: TextReader, shape: OutputShape) -> Reading[None]:
    if shape.frame is not None:
        yield from shape.frame(reader, CallCount(shape.schemas))
        return
    if shape.reasoning is not None:
        yield from _read_reasoning(reader, shape.reasoning, is_inside=shape.is_reasoning)
    syntax = shape.syntax
    marks, calls = Marks(() if syntax is None else syntax.marks), CallCount(shape.schemas)
    if syntax is not None and syntax.starts_with:
        yield from _read_start(reader, syntax, calls)
    while mark := (yield from text_until(reader, marks, TextDelta)):
        assert syntax is not None, "without marks none is found"
        yield from _read_calls(reader, mark, syntax, calls)


def _read_start(reader: TextReader, syntax: CallSyntax, calls: CallCount) -> Reading[None]:
    """A call without a mark, if the answer begins with one; blanks before other text stay its own."""
    reader.kept = []
    yield from skip_blanks(reader)
    if reader.text and reader.text[0] in syntax.starts_with:
        yield from _read_calls(reader, "", syntax, calls)
    else:
        reader.text = "".join(reader.kept) + reader.text


def _read_reasoning(reader: TextReader, tags: ReasoningTags, *, is_inside: bool) -> Reading[None]:
    """Reasoning at the beginning; blanks around it and around its tags are shown nowhere."""
    reader.kept = []
    has_tag = yield from take_if_next(reader, tags.begin)
    if not (has_tag or is_inside):
        reader.text = "".join(reader.kept) + reader.text
        return
    yield from skip_blanks(reader)
    yield from text_until(reader, Marks((tags.end,)), ReasoningDelta)
    yield from skip_blanks(reader)


def _read_calls(reader: TextReader, mark: str, syntax: CallSyntax, calls: CallCount) -> Reading[None]:
    """Calls after a mark, and the blanks behind them; what is no call before its name is known is text, all of it."""
    try:
        for event in syntax.read(reader, mark, calls):
            if event is not None:
                reader.kept = None if calls.is_open else []
            yield event
    except MalformedCall:
        if not calls.is_open:
            if reader.kept:
                yield TextDelta("".join(reader.kept))
            return
        yield calls.end(is_complete=False)
    yield from skip_blanks(reader)
