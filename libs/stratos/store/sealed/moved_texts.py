"""Texts of stream records in the object store: segments of a tenant, each many records that were moved together.

A segment is the length of its list of streams (4 bytes), that list as JSON, and of each record its fields and sealed
texts as JSON, sealed once more for tenant, stream and segment.  A segment's name is never used twice: so a record that
was made again under its id is never read from an older one's texts, and nothing opens in another one's place.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stratos.common.errors import DependencyDown, NotFound, StreamGone
from stratos.store.data_keys import BrokenSeal, seal, unseal
from stratos.store.object_store import ObjectStore

_LENGTH = struct.Struct(">I")
MOST_RECORDS = 256
"""Of a segment."""
_MOST_LIST_BYTES = _LENGTH.size + MOST_RECORDS * 128
OnEvent = Callable[[str, int], None]
"""Told what happened to how many records: "spilled", "unread" or "lost"."""


def nothing_counted(event: str, number: int) -> None:
    """Count nothing."""


class RecordUnread(DependencyDown):
    """A part of a record lies in the object store, which does not answer: it is known that there is one."""


@dataclass(frozen=True, slots=True)
class MovedRecord:
    """A record as it was read to be moved: its sealed texts by their fields."""

    stream_id: str
    texts: Mapping[str, str]

    def blocks(self) -> list[int]:
        """Numbers of the blocks among the fields, ascending."""
        return sorted(int(field) for field in self.texts if field.isdigit())

    def letters(self) -> str:
        """The other fields."""
        return "".join(field for field in self.texts if not field.isdigit())


@dataclass(frozen=True, slots=True)
class MovedPart:
    """Place of texts of a record in the object store."""

    segment: str
    offset: int
    length: int
    first: int
    """Block."""
    behind: int
    """Number behind the last block."""
    letters: str

    def has_any(self, fields: Collection[str]) -> bool:
        """Whether one of the fields may be here."""
        return any(
            self.first <= int(field) < self.behind if field.isdigit() else field in self.letters for field in fields
        )


def new_segment() -> str:
    """Name of a segment, never used again."""
    return secrets.token_hex(16)


def tenant_folder(tenant_id: str) -> str:
    """Where the segments of a tenant are."""
    return f"streams/{tenant_id}"


def segment_key(tenant_id: str, segment: str) -> str:
    """The object of a segment."""
    return f"{tenant_folder(tenant_id)}/{segment}"


def pack_segment(
    key: bytes, tenant_id: str, segment: str, records: Sequence[MovedRecord]
) -> tuple[bytes, list[tuple[int, int]]]:
    """Bytes of a segment, and of each record its offset and length."""
    names = orjson.dumps([record.stream_id for record in records])
    content, places = bytearray(_LENGTH.pack(len(names)) + names), []
    for record in records:
        part = seal(key, orjson.dumps(record.texts), _place(tenant_id, record.stream_id, segment))
        places.append((len(content), len(part)))
        content += part
    return bytes(content), places


async def streams_of(objects: ObjectStore, object_key: str) -> list[str]:
    """Streams that a segment has texts of; none where it is none. Raises ``NotFound``."""
    head = await objects.read(object_key, 0, _MOST_LIST_BYTES)
    if len(head) < _LENGTH.size:
        return []
    (length,) = _LENGTH.unpack_from(head)
    try:
        found: Any = orjson.loads(head[_LENGTH.size : _LENGTH.size + length])
    except orjson.JSONDecodeError:
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


class MovedTexts:
    """Reads what was moved.

    Args:
        objects: where segments are; ``None`` reads nothing.
        call_s: most time for the parts of a record.
        on_event: told what could not be read.
    """

    def __init__(self, objects: ObjectStore | None, call_s: float, on_event: OnEvent = nothing_counted) -> None:
        self._objects = objects
        self._call_s = call_s
        self._on_event = on_event

    async def read(
        self, key: bytes, tenant_id: str, stream_id: str, parts: Sequence[Sequence[Any]], missing: Collection[str]
    ) -> dict[str, str]:
        """Texts of missing fields; where several parts have one, the newest.

        Args:
            key: sub-key of the tenant.
            tenant_id, stream_id: whose record.
            parts: where its texts are, the oldest first.
            missing: fields.

        Raises:
            RecordUnread: the object store does not answer in time.
            StreamGone: it has lost a part, or has something else in its place.
        """
        wanted = [part for fields in parts if (part := MovedPart(*fields)).has_any(missing)]
        try:
            async with asyncio.timeout(self._call_s):
                found = await asyncio.gather(*(self._part(key, tenant_id, stream_id, part) for part in wanted))
        except (DependencyDown, TimeoutError) as error:
            self._on_event("unread", 1)
            raise RecordUnread("a part of this stream's record cannot be read now") from error
        except (NotFound, BrokenSeal) as error:
            self._on_event("lost", 1)
            raise StreamGone("a part of this stream's record was lost") from error
        return {field: text for texts in found for field, text in texts.items() if field in missing}

    async def _part(self, key: bytes, tenant_id: str, stream_id: str, part: MovedPart) -> dict[str, str]:
        if self._objects is None:
            raise DependencyDown("this gateway has no object store")
        content = await self._objects.read(segment_key(tenant_id, part.segment), part.offset, part.length)
        texts: dict[str, str] = orjson.loads(unseal(key, content, _place(tenant_id, stream_id, part.segment)))
        return texts


NOWHERE = MovedTexts(None, 1.0)
"""Of a gateway without an object store."""


def _place(tenant_id: str, stream_id: str, segment: str) -> bytes:
    return f"{tenant_id}/{stream_id}/moved/{segment}".encode()
