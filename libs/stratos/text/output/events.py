"""Events of one choice's output, in the order of its text: what every dialect of the API is rendered from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call, known by its name as soon as that is complete."""

    index: int
    """Place of the call among those of its choice, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, which are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call."""

    index: int
    is_complete: bool
    """The call was closed in its syntax; else its arguments are as far as they came."""


OutputEvent = TextDelta | ReasoningDelta | CallBegin | CallArguments | CallEnd
