"""Reads of a body's fields, as the parsers make them: the document has what is validated, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stratos_gateway.openai.fields import SESSION_FIELDS, Fields


class ReadKind(StrEnum):
    """How a field is read."""

    VALUE = "value"
    """By a check of its own, which the document does not know."""
    FLAG = "flag"
    NUMBER = "number"
    """Within a row of the limits table."""
    NEUTRAL = "neutral"
    """Refused unless its value asks for nothing."""
    IGNORED = "ignored"
    METADATA = "metadata"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class FieldRead:
    """One read of one field."""

    path: str
    """Of the field, within the body: "stream_options.include_usage"."""
    kind: ReadKind
    row: str = ""
    """Of the limits table, for a number."""
    neutral: tuple[Any, ...] = ()


Notes = Callable[..., list[FieldRead]]


def _numbers(path: str, name: str, row: str | None = None) -> list[FieldRead]:
    return [FieldRead(path + name, ReadKind.NUMBER, row=row or name)]


def _neutral(path: str, name: str, *neutral: Any) -> list[FieldRead]:
    return [FieldRead(path + name, ReadKind.NEUTRAL, neutral=neutral)]


_NOTES: dict[str, Notes] = {
    "take": lambda path, name: [FieldRead(path + name, ReadKind.VALUE)],
    "take_session": lambda path: [FieldRead(path + name, ReadKind.VALUE) for name in SESSION_FIELDS],
    "take_metadata": lambda path: [FieldRead(path + "metadata", ReadKind.METADATA)],
    "take_text": lambda path, name: [FieldRead(path + name, ReadKind.TEXT)],
    "flag": lambda path, name, default=False: [FieldRead(path + name, ReadKind.FLAG)],
    "number": _numbers,
    "numbers": lambda path, names: [FieldRead(path + name, ReadKind.NUMBER, row=name) for name in names],
    "refuse": _neutral,
    "choice": _neutral,
    "ignore": lambda path, *names: [FieldRead(path + name, ReadKind.IGNORED) for name in names],
}
"""What each way to read a field tells of it."""


@contextmanager
def recorded_reads() -> Iterator[list[FieldRead]]:
    """Reads of one body that is parsed within the block; a read that is made of others is one.

    Parsers read the body first: objects within it that have no path of their own are left out.
    """
    reads, within = list[FieldRead](), list[Fields]()
    roots = list[Fields]()
    originals = {method: getattr(Fields, method) for method in (*_NOTES, "has_any")}
    for method, notes in _NOTES.items():
        setattr(Fields, method, _noted(originals[method], notes, reads, within, roots))
    Fields.has_any = lambda self, names: True  # type: ignore[method-assign]  # what few bodies have is read as well
    try:
        yield reads
    finally:
        for method, original in originals.items():
            setattr(Fields, method, original)


def _noted(
    original: Callable[..., Any], notes: Notes, reads: list[FieldRead], within: list[Fields], roots: list[Fields]
) -> Callable[..., Any]:
    def read(fields: Fields, *args: Any, **more: Any) -> Any:
        roots[:] = roots or [fields]
        if not within and (fields.path or fields is roots[0]):
            reads.extend(notes(fields.path, *args, **more))
        within.append(fields)
        try:
            return original(fields, *args, **more)
        finally:
            within.pop()

    return read
