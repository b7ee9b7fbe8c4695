"""A stream that this gateway generates: what of it is still to be recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratos.common.errors import StratosError
from stratos.store.sealed.stream_store import StreamWrite
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import Piece, add_piece, add_tokens, encode_block, encode_end

BLOCK_BYTES = 1024
"""A block is written again, longer, until it has so many: about 300 tokens."""
_MAX_PLAIN = 64
"""Tokens that wait to be packed: one takes 0.3 us, and a turn of the desk packs those of 500 streams at once."""
DONE, GIVEN_UP = "d", "r"


class OwnedStream:
    """Belongs to the event loop.

    Args:
        tenant_id, stream_id: whose, and which.
        begins: epoch of the owner, and number of the first block that is its own.
        num_choices: over all prompts.
        end_with: ends the answer with an error.
    """

    def __init__(
        self,
        tenant_id: str,
        stream_id: str,
        begins: tuple[int, int],
        num_choices: int,
        end_with: Callable[[StratosError], None],
    ) -> None:
        self.tenant_id, self.stream_id = tenant_id, stream_id
        self.epoch, self._block = begins
        self.end_with = end_with
        self.num_cached: Callable[[], Sequence[int]] = tuple
        """Cached tokens of each prompt."""
        self.ended_unix_s: Callable[[], float]
        self.is_lost = False
        """It is not recorded any more."""
        self.renew_s = 0.0
        """When its lease is to be renewed, monotonic."""
        self.ends = ""
        self._num_choices = num_choices
        self._num_skipped = [0] * num_choices
        self._is_plain = num_choices == 1
        """All tokens that come are to be recorded, and of one choice."""
        self._pieces = bytearray()
        self._plain: list[int] = []
        """Tokens behind the pieces, each a piece of its own: a chunk costs no more than its place here."""
        self._num_written = 0
        self._ended_unix_s = 0

    @property
    def is_due(self) -> bool:
        """Something of it is not recorded."""
        return bool(self.ends or self._plain) or len(self._pieces) > self._num_written

    def skip(self, num_tokens: Sequence[int]) -> None:
        """The next tokens of each choice are in older blocks: their chunk waits for a place that its client has."""
        self._num_skipped = list(num_tokens)
        self._is_plain = self._num_choices == 1 and not any(num_tokens)

    def note(self, chunk: ChoiceChunk) -> None:
        """A chunk, about to be sent."""
        if self.is_lost:
            return
        ids = chunk.token_ids
        if self._is_plain and chunk.finish_reason is None and len(ids) == 1:
            self._plain.append(ids[0])
            if len(self._plain) >= _MAX_PLAIN:
                self._add_plain()
            return
        self._add_plain()
        num_skipped = self._num_skipped[chunk.index]
        if num_skipped:
            self._num_skipped[chunk.index] = max(0, num_skipped - len(ids))
            self._is_plain = self._num_choices == 1 and not any(self._num_skipped)
            ids = ids[num_skipped:]
        piece = Piece(chunk.index, ids, chunk.finish_reason is not None, chunk.cause)
        if piece.ends and not self._ended_unix_s:
            self._ended_unix_s = int(self.ended_unix_s())  # before it is rendered, so that both say the same
        add_piece(self._pieces, piece, self._num_choices)

    def note_whole(self) -> None:
        """Everything has come."""
        self.ends = DONE

    def _add_plain(self) -> None:
        if self._plain:
            add_tokens(self._pieces, self._plain)
            self._plain.clear()

    def write(self) -> StreamWrite:
        """News to be written now."""
        self._add_plain()
        is_new, ends, end = len(self._pieces) > self._num_written, self.ends, b""
        if ends == DONE:
            end = encode_end(self.num_cached())
        return StreamWrite(
            tenant_id=self.tenant_id,
            stream_id=self.stream_id,
            epoch=self.epoch,
            block=self._block if is_new else -1,
            content=encode_block(self.num_cached(), self._ended_unix_s, bytes(self._pieces)) if is_new else b"",
            ends=ends,
            end=end,
        )

    def note_written(self, num_bytes: int) -> None:
        """So many bytes of its pieces are recorded."""
        self._num_written = num_bytes
        if num_bytes >= BLOCK_BYTES:
            del self._pieces[:num_bytes]
            self._block, self._num_written = self._block + 1, 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the pieces of its last block, as they were last written."""
        return len(self._pieces)
