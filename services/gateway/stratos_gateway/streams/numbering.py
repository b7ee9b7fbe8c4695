"""A renderer whose events have ids, and which leaves out what its client has already.

Every chunk goes through the dialect's own renderer, also one that is left out: what it has in mind (open blocks, calls
half read) is then as it was when the client got it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from stratos.common.errors import BadRequest, StratosError
from stratos.store.sealed.stream_frames import frame_words
from stratos_gateway.http.sse import KEEP_ALIVE
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Renderer
from stratos_gateway.streams.asking import bad_cursor
from stratos_gateway.streams.cursor import FROM_THE_START, Cursor

RETRY = b"retry: 1000\n"
_COMMENT = b": keep-alive\n"
"""Without an empty line: after an id, that would be an event without data to some clients."""
_EVENT_END = b"\n\n"
_NUM_TEXTS = 4096
_NUMBERS = tuple(b"%d" % number for number in range(_NUM_TEXTS))
"""Texts of small numbers: making one takes as long as the rest of an id."""
_join, _json = b"".join, orjson.dumps


class TokenNotes:
    """Tokens of one choice that are noted one by one: all that one more of them touches, since a gateway has thousands
    of streams, and what is touched once in a while is in no cache.

    Args:
        number: of the stream in its tenant's frames.
        num_pieces: before them.
    """

    __slots__ = ("num_pieces", "number", "words")

    def __init__(self, number: int, num_pieces: int = 0) -> None:
        self.number, self.num_pieces = number, num_pieces
        self.words: bytearray | None = None
        """Frame that they go to, as ``frame_words`` gives them; ``None`` while the stream has no block, or is lost."""


_TokenEvents = tuple[TokenNotes, bytes, bytes, bytes, int, int]
"""Events of single tokens: where they are noted; bytes before the numbers of each, behind them and behind its text; and
how many more units than pieces the answer has, and events than units."""


class ChunkRecorder(Protocol):
    """Takes what the client is sent."""

    def note(self, chunk: ChoiceChunk) -> None:
        """A chunk, about to be sent."""

    @property
    def is_plain(self) -> bool:
        """Single tokens of the only choice, which goes on, can be noted without a chunk from here on."""

    def begin_tokens(self) -> TokenNotes:
        """Where they are noted until the next chunk is."""

    def wait_for_block(self) -> None:
        """One was noted there that no frame has."""

    def note_whole(self) -> None:
        """Everything has come."""

    def hold(self) -> Callable[[], None]:
        """Let another thread note chunks, until what this returns is called."""


class NumberedRenderer(Renderer):
    """Belongs to one answer on one connection.

    Args:
        inner: of the dialect.
        tag: of the stream.
        num_choices: over all prompts.
        cursor: what the client has.
    """

    def __init__(self, inner: Renderer, tag: str, num_choices: int, cursor: Cursor = FROM_THE_START) -> None:
        super().__init__(inner.answer)
        self.keep_alive = _COMMENT if inner.keep_alive == KEEP_ALIVE else inner.keep_alive
        self._recorder: ChunkRecorder | None = None
        self._inner = inner
        self._tag = tag.encode()
        self._tokens: _TokenEvents | None = None
        """Of the stream from the last chunk on, once they need none."""
        self._units = [0] * num_choices
        self._cursor = cursor
        self._seen = cursor.seen or self._units.copy()
        self._is_behind = bool(cursor.seen)
        """The client may have chunks that are still to come here."""
        self._num_events = 0
        self._num_told = 0
        """Events that the client got while it was behind."""
        self._num_skipped = cursor.num_skipped
        self._retry = RETRY

    @property
    def recorder(self) -> ChunkRecorder | None:
        """Where chunks are recorded; ``None`` where another gateway does, or did."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: ChunkRecorder) -> None:
        self._leave_tokens()
        self._recorder = recorder

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        """The whole answer at once."""
        if self._recorder is not None:
            for chunk in chunks:
                self._recorder.note(chunk)
        return self._inner.body(chunks, usage)

    def note_kept(self) -> None:
        """The record is whole: an answer that could not be kept is tried again from what it has."""
        if self._recorder is not None:
            self._recorder.note_whole()

    def hold(self) -> Callable[[], None]:
        """Nothing is written to the record while another thread adds to it."""
        return super().hold() if self._recorder is None else self._recorder.hold()

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        """Part of a stream for what is new to the client."""
        return self._chunk(chunks[0]) if len(chunks) == 1 else b"".join([self._chunk(chunk) for chunk in chunks])

    def token_part(self, token_id: int, text: str) -> bytes | None:
        """An event of a token; chunks go before where it is not certain that it is new to the client."""
        if (tokens := self._tokens) is None and (tokens := self._begin_tokens()) is None:
            return None
        notes, head, before, behind, more_units, more_events = tokens
        piece = notes.num_pieces
        notes.num_pieces = num_units = piece + 1
        if (words := notes.words) is not None:
            words += frame_words(notes.number, piece, token_id)
        elif self._recorder is not None:
            self._recorder.wait_for_block()
        num_units += more_units
        if not text:
            self._tokens = notes, head, before, behind, more_units, more_events - 1
            return b""
        number = num_units + more_events
        if number < _NUM_TEXTS and num_units < _NUM_TEXTS:
            return _join((head, _NUMBERS[number], b".", _NUMBERS[num_units], before, _json(text), behind))
        return b"%b%d.%d%b%b%b" % (head, number, num_units, before, _json(text), behind)

    def _begin_tokens(self) -> _TokenEvents | None:
        """From here on events of tokens differ in ids and texts alone; ``None`` where that is not certain."""
        is_special = self._is_behind or self._retry or len(self._units) > 1 or self._num_events < self._num_skipped
        if is_special or not (self._recorder is None or self._recorder.is_plain):
            return None
        template = self._inner.token_template
        if template is None or template.around is None:
            return None
        (before, behind), (num_units,) = template.around, self._units
        notes = TokenNotes(0) if self._recorder is None else self._recorder.begin_tokens()
        more_units, more_events = num_units - notes.num_pieces, self._num_events - num_units
        self._tokens = notes, b"id: %b." % self._tag, b"\n" + before, behind, more_units, more_events
        return self._tokens

    def _leave_tokens(self) -> None:
        """Count those that went without a chunk: one, or another recorder, follows."""
        if self._tokens is not None:
            notes, *_, more_units, more_events = self._tokens
            self._units[0] = notes.num_pieces + more_units
            self._num_events, self._tokens = self._units[0] + more_events, None

    def stream_end(self, usage: Usage) -> bytes:
        """The rest of a stream; its last event's id is that of everything."""
        self._leave_tokens()
        if self._is_behind:
            self._catch_up()
        events = _events(self._inner.stream_end(usage))
        if self._recorder is not None:
            self._recorder.note_whole()
        is_behind_end = any(seen > units for seen, units in zip(self._seen, self._units, strict=True))
        if is_behind_end or 0 < len(events) <= self._cursor.num_end:
            raise bad_cursor()  # no client has been told it
        if self._num_skipped > self._num_events + len(events):
            raise BadRequest("starting_after is no event of this stream", param="starting_after", code="invalid_cursor")
        place, parts = self._place(), []
        for number, event in enumerate(events, 1):
            self._num_events += 1
            if number > self._cursor.num_end:
                name = b"z" if number == len(events) else b"%d.%b.e%d" % (self._num_events, place, number)
                parts.append(self._numbered(name, event))
        return b"".join(parts)

    def stream_failure(self, error: StratosError) -> bytes:
        """An error as an event without an id: the stream can be resumed before it."""
        return self._inner.stream_failure(error)

    def _chunk(self, chunk: ChoiceChunk) -> bytes:
        self._leave_tokens()
        if self._recorder is not None:
            self._recorder.note(chunk)
        before = self._units[chunk.index]
        after = before + len(chunk.token_ids) + (chunk.finish_reason is not None)
        if self._is_behind:
            return self._chunk_behind(chunk, before, after)
        data, place = self._inner.stream_part((chunk,)), b""
        if not data:
            self._units[chunk.index] = after
            return data
        if data.count(_EVENT_END) > 1:
            place = self._place()
            self._units[chunk.index] = after
            return self._several(_events(data), place, chunk.index, after - before, 0)
        self._num_events += 1
        self._units[chunk.index] = after
        if self._retry or len(self._units) > 1 or self._num_events <= self._num_skipped:
            return self._numbered(b"%d.%b" % (self._num_events, self._place()), data)
        return b"id: %b.%d.%d\n%b" % (self._tag, self._num_events, after, data)  # as ``_numbered``, in one step

    def _chunk_behind(self, chunk: ChoiceChunk, before: int, after: int) -> bytes:
        """A chunk while the client has some that are still to come here."""
        is_seen = after <= self._seen[chunk.index]
        if not is_seen and not any(at < seen for at, seen in zip(self._units, self._seen, strict=True)):
            self._catch_up()
        events = _events(self._inner.stream_part((chunk,)))
        if is_seen:
            self._num_events += len(events)
            self._units[chunk.index] = after
            return b""
        if self._is_behind:  # with other choices, whose places are those that the client has
            self._num_events = self._cursor.num_events + self._num_told
            self._num_told += len(events)
        part, place = self._cursor.part, self._place()
        is_part = part is not None and part[0] == chunk.index and before == self._seen[chunk.index]
        self._units[chunk.index] = after
        num_seen = part[2] if part and is_part else 0
        if num_seen >= len(events) > 0:
            raise bad_cursor()  # the last event of a chunk has the place behind it
        return self._several(events, place, chunk.index, after - before, num_seen)

    def _catch_up(self) -> None:
        """From here on all is new to the client, but for events of the next chunk that it has."""
        part, self._is_behind = self._cursor.part, False
        num_told = self._cursor.num_events - (part[2] if part else 0) - self._cursor.num_end + self._num_told
        if self._num_events != num_told:
            self._num_events = num_told
            self._inner.renumber(num_told)

    def _several(self, events: Sequence[bytes], place: bytes, choice: int, size: int, num_seen: int) -> bytes:
        parts = []
        for number, event in enumerate(events, 1):
            self._num_events += 1
            if number > num_seen:
                name = b"%d.%b%b" % (self._num_events, self._place(), self._part_to_come())
                if number < len(events):
                    name = b"%d.%b.%d-%d-%d" % (self._num_events, place, choice, size, number)
                parts.append(self._numbered(name, event))
        return b"".join(parts)

    def _part_to_come(self) -> bytes:
        """Part of a later chunk of another choice that the client has, for an id."""
        part = self._cursor.part if self._is_behind else None
        return b"" if part is None or self._units[part[0]] > self._seen[part[0]] else b".%d-%d-%d" % part

    def _numbered(self, name: bytes, event: bytes) -> bytes:
        if self._num_events <= self._num_skipped:
            return b""
        retry, self._retry = self._retry, b""
        return b"%bid: %b.%b\n%b" % (retry, self._tag, name, event)

    def _place(self) -> bytes:
        if len(self._units) == 1:
            return b"%d" % self._units[0]
        units = map(max, self._units, self._seen) if self._is_behind else self._units
        return "-".join(map(str, units)).encode()


def _events(data: bytes) -> list[bytes]:
    """Events of a part of a stream, each with its end: JSON has no empty line."""
    return [event + _EVENT_END for event in data.split(_EVENT_END)[:-1]]
