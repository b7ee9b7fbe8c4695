"""Frames: the newest tokens of all streams of a tenant at one gateway, sealed together, one for each of its turns.

A frame is bound to tenant, gateway and turn, so one in the place of another does not open, and says nothing.  Each
token in it has the number of its stream and its own among the pieces of the record: in whatever order frames are read,
and whichever are missing, a token is where it belongs, and a gap ends what can be gone on from.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import sys
from array import array
from binascii import b2a_base64
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from redis.asyncio import Redis

from stratos.store.data_keys import BrokenSeal, PlaceCipher, unseal
from stratos.store.sealed.stream_scripts import MOST_TURNS, OLD_SLOTS

WORD_BYTES, _ENTRY_WORDS = 4, 3
frame_words = struct.Struct(f"={_ENTRY_WORDS}I").pack
"""Bytes of a token in a frame, given the number of its stream, its own among the pieces, and its id."""
_MAX_KEPT_BYTES = 4 << 20
"""Of frames that were read, for the next stream of their gateway."""


@dataclass(slots=True)
class StreamFrame:
    """Newest tokens of all streams of one tenant at this gateway, which are in no block yet."""

    tenant_id: str
    turn: int
    """Number of the gateway's turn, from 1."""
    entries: bytes
    """Three numbers of 32 bits for each token: that of its stream, its own among the pieces, the token."""
    dropped: Sequence[int] = ()
    """Turns of older frames that nothing needs any more."""


@dataclass(frozen=True, slots=True)
class FrameTurns:
    """Frames of a tenant at a gateway, from one turn to another; not every turn has one."""

    tenant_id: str
    writer: str
    first: int
    last: int
    is_by_turn: bool
    """Each has a field of its own; those of an older version share few."""

    def fields(self) -> list[str]:
        """Field of each, the oldest first."""
        most = MOST_TURNS if self.is_by_turn else OLD_SLOTS
        turns = range(max(self.first, self.last - most + 1), self.last + 1)
        return [f"{self.writer}/{turn if self.is_by_turn else turn % OLD_SLOTS}" for turn in turns]


class _Entries:
    """Tokens of a frame."""

    def __init__(self, entries: bytes) -> None:
        self._words = array("I", entries)
        self._streams = self._words[::_ENTRY_WORDS].tobytes()
        self.num_bytes = 256 + len(entries) + len(self._streams)

    def of(self, number: int) -> Iterator[tuple[int, int]]:
        """Tokens of a stream, each behind its number among the pieces."""
        sought = number.to_bytes(WORD_BYTES, sys.byteorder)
        at = self._streams.find(sought)
        while at >= 0:
            place, is_between = divmod(at, WORD_BYTES)
            if not is_between:
                yield self._words[_ENTRY_WORDS * place + 1], self._words[_ENTRY_WORDS * place + 2]
            at = self._streams.find(sought, at + 1)


class StreamFrames:
    """Reads a frame once, however many streams of its gateway are taken over or followed.

    Args:
        redis: with decoded answers.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._kept: OrderedDict[str, _Entries] = OrderedDict()
        """By place, those that were used last at the end."""
        self._num_bytes = 0
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By tenant, so that streams that are taken over together wait for one read."""

    async def tail(self, key: bytes, frames_key: str, turns: FrameTurns, number: int) -> dict[int, int]:
        """Tokens of one stream, by their numbers among its pieces.

        Args:
            key: sub-key of the tenant.
            frames_key: name of the hash with its frames.
            turns: those that are read.
            number: of the stream in them.
        """
        fields = turns.fields()
        if not fields:
            return {}
        reading = self._reading.setdefault(frames_key, asyncio.Lock())
        async with reading:
            found = await self._read(key, frames_key, turns, fields)
        return dict(pair for entries in found for pair in entries.of(number))

    async def _read(self, key: bytes, frames_key: str, turns: FrameTurns, fields: Sequence[str]) -> list[_Entries]:
        places = [frame_place(turns.tenant_id, field) for field in fields]
        found = {place: self._kept[place] for place in places if turns.is_by_turn and place in self._kept}
        missing = [(place, field) for place, field in zip(places, fields, strict=True) if place not in found]
        if missing:
            texts: list[Any] = await self._redis.hmget(frames_key, [field for _, field in missing])
            for (place, _), text in zip(missing, texts, strict=True):
                found[place] = _Entries(opened_text(key, text or "", place))
        if turns.is_by_turn:
            self._keep(found)
        return [found[place] for place in places]

    def _keep(self, found: dict[str, _Entries]) -> None:
        """For the next one: a turn that has passed is never written again."""
        for place, entries in found.items():
            if place not in self._kept:
                self._kept[place], self._num_bytes = entries, self._num_bytes + entries.num_bytes
            self._kept.move_to_end(place)
        while self._num_bytes > _MAX_KEPT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


def frame_place(tenant_id: str, field: str) -> str:
    """Name of the place that a frame is sealed for."""
    return f"{tenant_id}/frames/{field}"


def sealed_by(cipher: PlaceCipher, plain: bytes, place: str) -> str:
    """A text of a place, sealed."""
    return b2a_base64(cipher.seal(plain, place.encode()), newline=False).decode()  # ``b64encode``, without its checks


def sealed_text(key: bytes, plain: bytes, place: str) -> str:
    """The same for one text alone."""
    return sealed_by(PlaceCipher(key), plain, place)


def opened_text(key: bytes, text: str, place: str) -> bytes:
    """A sealed text of a place; empty where it was altered, cut, or put there from another place."""
    if not text:
        return b""
    try:
        return unseal(key, base64.b64decode(text, validate=True), place.encode())
    except (BrokenSeal, ValueError):
        return b""
