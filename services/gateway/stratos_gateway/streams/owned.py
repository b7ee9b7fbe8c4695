"""A stream that this gateway generates: what of it is still to be recorded."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.store.sealed.stream_store import StreamWrite
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import Piece, add_piece, add_tokens, encode_block, encode_end

BLOCK_BYTES = 1024
"""A block is written again, longer, until it has so many: about 300 tokens."""
_MAX_PLAIN = 64
"""Tokens that wait to be packed, so that a write after an outage has few to pack."""
DONE, GIVEN_UP = "d", "r"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Where an owner of a record begins."""

    epoch: int = 1
    number: int = 0
    """Number of the stream in this gateway's frames."""
    block: int = 0
    """Number of the first block that is its own."""
    num_pieces: int = 0
    """Pieces of all blocks of older owners."""
    tail: Sequence[int] = ()
    """Tokens that an older owner's frames had and no block has: the first pieces of its own."""


class OwnedStream:
    """Belongs to the event loop.

    Args:
        tenant_id, stream_id: whose, and which.
        begins: where this owner begins.
        num_choices: over all prompts.
        end_with: ends the answer with an error.
        has_logprobs: its answer has log probabilities, which no frame has.
    """

    def __init__(
        self,
        tenant_id: str,
        stream_id: str,
        begins: Ownership,
        num_choices: int,
        end_with: Callable[[StratosError], None],
        *,
        has_logprobs: bool = False,
    ) -> None:
        self.tenant_id, self.stream_id = tenant_id, stream_id
        self.epoch, self._block, self._number = begins.epoch, begins.block, begins.number
        self.end_with = end_with
        self.num_cached: Callable[[], Sequence[int]] = tuple
        """Cached tokens of each prompt."""
        self.ended_unix_s: Callable[[], float]
        self.is_lost = False
        """It is not recorded any more."""
        self.is_due = bool(begins.tail)
        """Something of it is to be written with the next turn, and in no frame."""
        self.renew_s = 0.0
        """When all of it is to be written, and its lease renewed, monotonic."""
        self.ends = ""
        self.frame: array[int] | None = None
        """Newest tokens of all streams of the tenant, as ``StreamFrame`` has them."""
        self._num_choices, self._has_logprobs = num_choices, has_logprobs
        self._num_skipped = [0] * num_choices
        self._can_be_plain = self.is_plain = num_choices == 1 and not has_logprobs
        """All tokens that come are to be recorded, and of one choice."""
        self._is_framed = False
        """A block of it is written, so a token is recorded as soon as it is in a frame."""
        self._pieces = bytearray()
        add_tokens(self._pieces, begins.tail)
        self._plain: list[int] = []
        """Tokens behind the pieces, each a piece of its own: a chunk costs no more than its place here."""
        self._num_pieces = begins.num_pieces + len(begins.tail)
        """Pieces of all blocks, before the plain ones."""
        self._num_written = 0
        self._ended_unix_s = 0

    def skip(self, num_tokens: Sequence[int]) -> None:
        """The next tokens of each choice are in older blocks: their chunk waits for a place that its client has."""
        self._num_skipped = list(num_tokens)
        self.is_plain = self._can_be_plain and not any(num_tokens)

    def note(self, chunk: ChoiceChunk) -> None:
        """A chunk, about to be sent."""
        ids = chunk.token_ids
        if self.is_plain and chunk.finish_reason is None and len(ids) == 1:
            self.note_token(ids[0])
            return
        if self.is_lost:
            return
        self._add_plain()
        num_skipped, entries = self._num_skipped[chunk.index], chunk.entries
        if num_skipped:
            self._num_skipped[chunk.index] = max(0, num_skipped - len(ids))
            self.is_plain = self._can_be_plain and not any(self._num_skipped)
            ids, entries = ids[num_skipped:], entries[num_skipped:]
        logprobs = [entry.logprobs for entry in entries]
        piece = Piece(chunk.index, ids, chunk.finish_reason is not None, chunk.cause, logprobs)
        if piece.ends and not self._ended_unix_s:
            self._ended_unix_s = int(self.ended_unix_s())  # before it is rendered, so that both say the same
        add_piece(self._pieces, piece, self._num_choices, has_logprobs=self._has_logprobs)
        self._num_pieces += 1
        self.is_due = True

    def note_token(self, token_id: int) -> None:
        """A chunk of one token of its only choice, which goes on; ``skip`` has nothing left."""
        if self.is_lost:
            return
        plain = self._plain
        if self._is_framed and self.frame is not None:
            self.frame.extend((self._number, self._num_pieces + len(plain), token_id))
        else:
            self.is_due = True
        plain.append(token_id)
        if len(plain) >= _MAX_PLAIN:
            self._add_plain()

    def note_whole(self) -> None:
        """Everything has come."""
        self.end(DONE)

    def end(self, how: str) -> None:
        """It is recorded to its end, or given up."""
        self.ends, self.is_due = how, True

    def _add_plain(self) -> None:
        if self._plain:
            add_tokens(self._pieces, self._plain)
            self._num_pieces += len(self._plain)
            self._plain.clear()

    def write(self) -> StreamWrite:
        """News to be written now, with those that are in frames alone."""
        self._add_plain()
        self.is_due = False
        is_new, ends, end = len(self._pieces) > self._num_written, self.ends, b""
        if ends == DONE:
            end = encode_end(self.num_cached())
        return StreamWrite(
            tenant_id=self.tenant_id,
            stream_id=self.stream_id,
            epoch=self.epoch,
            block=self._block if is_new else -1,
            content=encode_block(self.num_cached(), self._ended_unix_s, bytes(self._pieces)) if is_new else b"",
            number=self._number,
            ends=ends,
            end=end,
        )

    def note_written(self, num_bytes: int) -> None:
        """So many bytes of its pieces are recorded."""
        self._num_written, self._is_framed = num_bytes, self._is_framed or num_bytes > 0
        if num_bytes >= BLOCK_BYTES:
            del self._pieces[:num_bytes]
            self._block, self._num_written = self._block + 1, 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the pieces of its last block, as they were last written."""
        return len(self._pieces)
