"""Kinds of fields that a flat codec's row can name: renamed, scaled, sets, enums, records in records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from stratos.common.errors import BadRequest

ValueT = TypeVar("ValueT")
Part = dict[str, Any]
"""Fields of a message by their names, as its constructor takes them, and those of a message around it."""


class RecordCodec(Protocol):
    """Conversions of a record that may be part of another one."""

    to_part: Callable[..., Part]
    from_pb: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatField:
    """How a field differs from a copy under one name."""

    wire_name: str = ""
    """In the message; empty: as in the record."""
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    is_optional: bool = False
    """It may be absent, and is ``None`` in the record then; a number that may be absent need not say so."""

    def under(self, wire_name: str) -> FlatField:
        """The same with another name in the message."""
        return replace(self, wire_name=wire_name)


PLAIN = FlatField()
SET = FlatField(encode=sorted, decode=frozenset)
"""A set in the record, sorted in the message."""


def renamed(wire_name: str) -> FlatField:
    """A field of another name in the message."""
    return FlatField(wire_name=wire_name)


def whole_ms(wire_name: str) -> FlatField:
    """Seconds in the record, rounded milliseconds in the message."""
    return FlatField(wire_name=wire_name, encode=lambda seconds: round(seconds * 1000), decode=lambda ms: ms / 1000)


def fractional_ms(wire_name: str) -> FlatField:
    """Seconds in the record, milliseconds with their fraction in the message."""
    return FlatField(wire_name=wire_name, encode=lambda seconds: seconds * 1000, decode=lambda ms: ms / 1000)


def nested(codec: RecordCodec, wire_name: str = "") -> FlatField:
    """A record in the record; a message without it gives the record of an empty message."""
    return FlatField(wire_name=wire_name, encode=codec.to_part, decode=codec.from_pb)


def optional(codec: RecordCodec) -> FlatField:
    """A record in the record, or ``None``."""
    to_part = codec.to_part
    return FlatField(
        encode=lambda record: None if record is None else to_part(record), decode=codec.from_pb, is_optional=True
    )


def each(codec: RecordCodec) -> FlatField:
    """A tuple of records."""
    to_part, from_pb = codec.to_part, codec.from_pb
    return FlatField(
        encode=lambda records: [to_part(record) for record in records],
        decode=lambda messages: tuple([from_pb(message) for message in messages]),
    )


class EnumCodec(Generic[ValueT]):
    """Members of an enum as numbers, both ways.

    Args:
        numbers: by member.
        name: of the kind of value, for the error text.
        param: of that error.
        default: taken for a number that this build does not know; without one it is refused.
    """

    def __init__(
        self, numbers: Mapping[ValueT, int], *, name: str = "", param: str = "", default: ValueT | None = None
    ) -> None:
        self._numbers = dict(numbers)
        self._members = {number: member for member, number in numbers.items()}
        self._name, self._param, self._default = name, param, default
        self.field = FlatField(encode=self._numbers.__getitem__, decode=self.from_pb)

    def to_pb(self, member: ValueT) -> Any:
        """The number of a member."""
        return self._numbers[member]

    def from_pb(self, number: int) -> ValueT:
        """The member of a number.

        Raises:
            BadRequest: this build does not know it.
        """
        member = self._members.get(number, self._default)
        if member is None:
            raise BadRequest(f"unknown {self._name} {number}", param=self._param)
        return member
