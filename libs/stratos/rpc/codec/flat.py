"""One codec for flat records: a row names record and message, and the fields that are more than a copy.

    CONVICTION = FlatCodec(Conviction, router_pb2.Conviction, fields={"left_s": whole_ms("left_ms")})

Fields that the row does not name are copied: a repeated one becomes a tuple, a map a dict, and a number that may be
absent becomes ``None``.  A row is compiled when its module is imported: a field of the record or of the message that
has no counterpart is refused there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from stratos.rpc.codec.fields import PLAIN, FlatField, Part

RecordT = TypeVar("RecordT")
MessageT = TypeVar("MessageT", bound=Message)
_Values = tuple[Any, ...]
_Convert = Callable[[Any], Any]


class FlatCodec(Generic[RecordT, MessageT]):
    """Conversions between a dataclass and a message.

    Args:
        record: the dataclass.
        message: the message.
        fields: of the record, those that are more than a copy under one name.
        inline: records in the record whose fields lie in the message itself: class and ``fields`` by the field's name.
        by_hand: fields of either side that the row leaves alone: callers pass them, or they keep their defaults.
        check: raises for a message that must not become a record.
        cache_size: most records that are kept, so that equal messages give one object; 0 keeps none.

    Raises:
        TypeError: a field has no counterpart.
    """

    def __init__(
        self,
        record: type[RecordT],
        message: type[MessageT],
        *,
        fields: Mapping[str, FlatField] | None = None,
        inline: Mapping[str, tuple[type[Any], Mapping[str, FlatField]]] | None = None,
        by_hand: Collection[str] = (),
        check: Callable[[MessageT], None] | None = None,
        cache_size: int = 0,
    ) -> None:
        self.record_type = record
        inner = inline or {}
        own = _Part(record, message, fields or {}, {*by_hand, *inner})
        parts = {name: _Part(kind, message, rows, ()) for name, (kind, rows) in inner.items()}
        every = (own, *parts.values())
        wire_names = [name for part in every for name in part.wire_names]
        _refuse_leftovers(record, message, {*wire_names, *by_hand})
        paths = own.names + [f"{name}.{field}" for name, part in parts.items() for field in part.names]
        encoders = [pair for part in every for pair in part.encoders]
        to_part = _encoder(wire_names, _reader(paths), encoders)

        def to_pb(record: RecordT, **by_hand: Any) -> MessageT:
            return message(**to_part(record, **by_hand))

        self.to_pb: Callable[..., MessageT] = to_pb
        """A record as a message; keywords are the fields by hand."""
        self.from_pb: Callable[..., RecordT] = own.decoder(parts, check)
        """A record from a message; keywords are the fields by hand. Raises ``BadRequest`` for a malformed one."""
        self.to_part: Callable[..., Part] = to_part
        """The same as fields of a message that is made within another one, which takes no copy. Where records are kept
        they are of many messages, and never changed."""
        if cache_size:
            self.to_part = lru_cache(maxsize=cache_size)(to_part)
            self.from_pb = own.keeping_decoder(cache_size)


class OneOfCodec(Generic[RecordT, MessageT]):
    """Conversions between a union of dataclasses and a message in which exactly one field is set.

    Args:
        message: the message.
        codecs: by the name of the message's field.
    """

    def __init__(self, message: type[MessageT], codecs: Mapping[str, FlatCodec[Any, Any]]) -> None:
        self._message, self._codecs = message, dict(codecs)
        self._names = {codec.record_type: (name, codec) for name, codec in codecs.items()}

    def to_pb(self, record: RecordT) -> MessageT:
        """A record as a message."""
        name, codec = self._names[type(record)]
        return self._message(**{name: codec.to_pb(record)})

    def from_pb(self, message: MessageT, name: str) -> RecordT:
        """The record of the field that is set, by its name.

        Raises:
            BadRequest: the message is malformed.
        """
        record: RecordT = self._codecs[name].from_pb(getattr(message, name))
        return record


class _Part:
    """The fields of one dataclass in a message."""

    def __init__(
        self, kind: type[Any], message: type[Message], rows: Mapping[str, FlatField], others: Collection[str]
    ) -> None:
        self._kind = kind
        self.names = [field.name for field in dataclasses.fields(kind) if field.name not in others]
        if strangers := sorted(rows.keys() - {*self.names}):
            raise TypeError(f"{kind.__name__} has no {', '.join(strangers)}")
        found = {name: rows.get(name, PLAIN) for name in self.names}
        self.wire_names = [row.wire_name or name for name, row in found.items()]
        if strangers := sorted({*self.wire_names} - {*message.DESCRIPTOR.fields_by_name}):
            raise TypeError(f"{message.DESCRIPTOR.full_name} has no {', '.join(strangers)}")
        self.encoders: list[tuple[str, _Convert]] = []
        self._decoders: list[tuple[str, _Convert]] = []
        self._optional: list[tuple[str, str, _Convert]] = []
        for wire_name, (name, row) in zip(self.wire_names, found.items(), strict=True):
            self._compile(name, row, wire_name, message)

    def _compile(self, name: str, row: FlatField, wire_name: str, message: type[Message]) -> None:
        field = message.DESCRIPTOR.fields_by_name[wire_name]
        if row.encode is not None:
            self.encoders.append((wire_name, row.encode))
        decode: _Convert | None = row.decode
        if decode is None and field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                raise TypeError(f"{message.DESCRIPTOR.full_name}.{wire_name} is a message: name its codec")
            decode = dict
        elif decode is None and field.is_repeated:
            decode = tuple
        if row.is_optional or (field.has_presence and field.message_type is None):
            self._optional.append((name, wire_name, decode or _as_it_is))
        elif decode is not None:
            self._decoders.append((name, decode))

    def decoder(self, parts: Mapping[str, _Part], check: _Convert | None) -> Callable[..., Any]:
        """Makes records of messages, with those of ``parts`` in them."""
        kind, names, read = self._kind, tuple(self.names), _reader(self.wire_names)
        decoders, optional = tuple(self._decoders), tuple(self._optional)
        inline = tuple((name, part.decoder({}, None)) for name, part in parts.items())

        def decode_message(message: Any, **fields: Any) -> Any:
            if check is not None:
                check(message)
            fields.update(zip(names, read(message)))  # noqa: B905 (strict takes as long as the copying)
            for name, decode in decoders:
                fields[name] = decode(fields[name])
            for name, wire_name, decode in optional:
                fields[name] = decode(fields[name]) if message.HasField(wire_name) else None
            for name, decode in inline:
                fields[name] = decode(message)
            return kind(**fields)

        return decode_message

    def keeping_decoder(self, cache_size: int) -> Callable[..., Any]:
        """Makes one record of equal messages."""
        kind, names, read, decoders = self._kind, tuple(self.names), _reader(self.wire_names), tuple(self._decoders)

        @lru_cache(maxsize=cache_size)
        def make(values: _Values) -> Any:
            fields = dict(zip(names, values, strict=True))
            return kind(**fields | {name: decode(fields[name]) for name, decode in decoders})

        return lambda message: make(read(message))


def _encoder(
    wire_names: Sequence[str], read: Callable[[Any], _Values], encoders: Sequence[tuple[str, _Convert]]
) -> Callable[..., Part]:
    names, converted = tuple(wire_names), tuple(encoders)

    def encode_record(record: Any, **fields: Any) -> Part:
        fields.update(zip(names, read(record)))  # noqa: B905 (strict takes as long as the copying)
        for name, encode in converted:
            fields[name] = encode(fields[name])
        return fields

    return encode_record


def _reader(paths: Sequence[str]) -> Callable[[Any], _Values]:
    """Reads attributes into a tuple, also none or a single one."""
    if len(paths) > 1:
        return attrgetter(*paths)
    return lambda source: tuple([attrgetter(path)(source) for path in paths])


def _as_it_is(value: Any) -> Any:
    return value


def _refuse_leftovers(record: type[Any], message: type[Message], known: set[str]) -> None:
    if leftover := sorted({*message.DESCRIPTOR.fields_by_name} - known):
        raise TypeError(f"{record.__name__} has no {', '.join(leftover)} of {message.DESCRIPTOR.full_name}")
