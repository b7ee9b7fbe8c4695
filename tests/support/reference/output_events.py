"""Events of an output put together, for tests that compare what different pieces of one text give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratos.text.output.events import CallArguments, CallBegin, OutputEvent, ReasoningDelta, TextDelta
from stratos.text.output.parser import OutputParser, OutputShape


def joined(events: Iterable[OutputEvent]) -> list[OutputEvent]:
    """Deltas of one thing that follow one another as one."""
    found: list[OutputEvent] = []
    for event in events:
        match (found[-1] if found else None, event):
            case (TextDelta(old), TextDelta(new)):
                found[-1] = TextDelta(old + new)
            case (ReasoningDelta(old), ReasoningDelta(new)):
                found[-1] = ReasoningDelta(old + new)
            case (CallArguments(index, old), CallArguments(same, new)) if index == same:
                found[-1] = CallArguments(index, old + new)
            case _:
                found.append(event)
    return found


def events_of(shape: OutputShape, pieces: Sequence[str]) -> list[OutputEvent]:
    """Events of a text that comes in these pieces."""
    parser = OutputParser(shape)
    return joined([event for piece in pieces for event in parser.feed(piece)] + parser.finish())


def calls_of(events: list[OutputEvent]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    names = [event.name for event in events if isinstance(event, CallBegin)]
    arguments = [""] * len(names)
    for event in events:
        if isinstance(event, CallArguments):
            arguments[event.index] += event.text
    return list(zip(names, arguments, strict=True))


def text_of(events: list[OutputEvent]) -> str:
    """The answer's text."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))
