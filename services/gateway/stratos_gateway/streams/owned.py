"""Streams that this gateway generates: what of them is still to be recorded.

A stream counts on its tenant's frames for what came since its block was written.  Its block is written again once
those are many, some in each turn, so that streams that began together do not fall due together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.core.placement import Placement
from stratos.core.requests.records import PositionLogprobs
from stratos.store.sealed.stream_frames import WORD_BYTES, StreamFrame, frame_words
from stratos.store.sealed.stream_scripts import MOST_TURNS
from stratos.store.sealed.stream_store import StreamWrite
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import Piece, add_piece, add_tokens, encode_block, encode_end, encode_places
from stratos_gateway.streams.numbering import TokenNotes

BLOCK_BYTES = 1024
"""A block is written again, longer, until it has so many: about 300 tokens."""
_MOST_TURNS = MOST_TURNS * 3 // 4
"""Turns after which a stream's block is written at the latest; readers look for frames in some more."""
_LEAST_AGE = 0.75
"""Part of these turns, or of most words, after which blocks are written, those that wait longest first."""
_MOST_WORDS = 3 * 64 * 1024
"""As many numbers in frames of a tenant, three for each token: 1 MiB sealed."""
_SPARE_TURNS = 32
"""In which frames are kept that no stream here needs: another gateway may be reading them to take one over."""
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
        has_prompt: and those of its prompts.
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
        has_prompt: bool = False,
    ) -> None:
        self.tenant_id, self.stream_id = tenant_id, stream_id
        self.epoch, self._block = begins.epoch, begins.block
        self.end_with = end_with
        self.num_cached: Callable[[], Sequence[int]] = tuple
        """Cached tokens of each prompt."""
        self.ended_unix_s: Callable[[], float]
        self.places: Callable[[], Sequence[Placement | None]] = tuple
        """Where each prompt runs."""
        self._told_places: Sequence[Placement | None] = ()
        """The same as it is recorded, and as it was written last."""
        self._written_places: Sequence[Placement | None] = ()
        self.is_lost = False
        """It is not recorded any more."""
        self.ends_with_record = False
        """Its record is all that a client reads: without one it is not computed on."""
        self.is_due = False
        """Something of it is to be written with the next turn, and in no frame."""
        self.is_held = False
        """Another thread notes what came, so nothing of it is written."""
        self.due: dict[OwnedStream, None] = {}
        """Takes streams that become due."""
        self.lease = f"{stream_id} {begins.epoch}"
        """Names the lease where it alone is renewed."""
        self.ends = ""
        self.words = bytearray()
        """Newest tokens of all streams of the tenant, as ``TenantFrames`` has them."""
        self.ids: Callable[[], Sequence[int]] = tuple
        """Tokens of its only choice so far: a list to which each is put once it is noted."""
        self._num_choices, self._has_logprobs, self._has_prompt = num_choices, has_logprobs, has_prompt
        self._told: dict[int, Sequence[PositionLogprobs]] = {}
        """Log probabilities of prompts that are recorded: all choices of a prompt have the same."""
        self._num_skipped = [0] * num_choices
        self._can_be_plain = self.is_plain = num_choices == 1 and not (has_logprobs or has_prompt)
        """All tokens that come are to be recorded, and of one choice."""
        self._pieces = bytearray()
        add_tokens(self._pieces, begins.tail)
        self._told_pieces = begins.num_pieces, begins.num_pieces
        """Pieces before its newest block, and with it as it was last written."""
        self._num_packed = begins.num_pieces + len(begins.tail)
        """Pieces of all blocks and of ``_pieces``; those of ``notes`` behind them are tokens of ``_journal``."""
        self.notes = TokenNotes(begins.number, self._num_packed)
        self._journal: Sequence[int] = ()
        self._at = 0
        """Place in it of the next one to be packed."""
        self._num_written = 0
        self._ended_unix_s = 0

    @property
    def has_news(self) -> bool:
        """Something of it is in no block."""
        return self.notes.num_pieces > self._num_packed or len(self._pieces) > self._num_written

    @property
    def is_framed(self) -> bool:
        """A block of it is written, so a token is recorded as soon as it is in a frame."""
        return self.notes.words is not None

    def become_due(self) -> None:
        """Be written with the next turn."""
        if not (self.is_due or self.is_held):
            self.is_due, self.due[self] = True, None

    def hold(self) -> Callable[[], None]:
        """Let another thread note what comes, until the event loop calls what this returns: then it is written."""
        self.is_held = True
        return self._release

    def _release(self) -> None:
        self.is_held = self.is_due = False
        self.become_due()

    def skip(self, num_tokens: Sequence[int]) -> None:
        """The next tokens of each choice are in older blocks: their chunk waits for a place that its client has."""
        self._num_skipped = list(num_tokens)
        self.is_plain = self._can_be_plain and not any(num_tokens)

    def note(self, chunk: ChoiceChunk) -> None:
        """A chunk, about to be sent."""
        if self.is_lost:
            return
        self.pack()
        ids = chunk.token_ids
        if self.is_plain and chunk.finish_reason is None and len(ids) == 1:
            add_tokens(self._pieces, ids)
            self._note_piece(ids[0])
            return
        num_skipped, entries = self._num_skipped[chunk.index], chunk.entries
        if num_skipped:
            self._num_skipped[chunk.index] = max(0, num_skipped - len(ids))
            self.is_plain = self._can_be_plain and not any(self._num_skipped)
            ids, entries = ids[num_skipped:], entries[num_skipped:]
        logprobs = [entry.logprobs for entry in entries]
        prompt = () if id(chunk.prompt_logprobs) in self._told else chunk.prompt_logprobs
        self._told[id(prompt)] = prompt
        piece = Piece(chunk.index, ids, chunk.finish_reason is not None, chunk.cause, logprobs, prompt)
        if piece.ends and not self._ended_unix_s:
            self._ended_unix_s = int(self.ended_unix_s())  # before it is rendered, so that both say the same
        add_piece(self._pieces, piece, self._num_choices, has_logprobs=self._has_logprobs, has_prompt=self._has_prompt)
        self.notes.num_pieces += 1
        self._num_packed += 1
        self.become_due()

    def _note_piece(self, token_id: int) -> None:
        """One of one token, which is packed."""
        notes = self.notes
        if notes.words is None:
            self.become_due()
        else:
            notes.words += frame_words(notes.number, notes.num_pieces, token_id)
        notes.num_pieces += 1
        self._num_packed += 1

    def begin_tokens(self) -> TokenNotes:
        """The next tokens are noted there, each before it is put to ``ids``; ``note`` ends that."""
        self.pack()
        self._journal = self.ids()
        self._at = len(self._journal)
        return self.notes

    def wait_for_block(self) -> None:
        """A token was noted that is in no frame."""
        if not self.is_lost:
            self.become_due()

    def lose(self) -> None:
        """Record it no more."""
        self.is_lost, self.notes.words = True, None

    def note_whole(self) -> None:
        """Everything has come."""
        self.end(DONE)

    def end(self, how: str) -> None:
        """It is recorded to its end, or given up."""
        self.ends = how
        self.become_due()

    def pack(self) -> None:
        """Pack what was noted one by one."""
        num = self.notes.num_pieces - self._num_packed
        if num:
            end = self._at + num
            add_tokens(self._pieces, self._journal[self._at : end])
            self._at, self._num_packed = end, self.notes.num_pieces

    def write(self) -> StreamWrite:
        """News to be written now, with those that are in frames alone."""
        self.pack()
        self.is_due = False
        is_new, ends, end = len(self._pieces) > self._num_written, self.ends, b""
        self._told_pieces = self._told_pieces[0], self._num_packed
        places = self._written_places = () if ends else self.places()
        if ends == DONE:
            end = encode_end(self.num_cached())
        elif places != self._told_places:
            end = encode_places(places)
        return StreamWrite(
            tenant_id=self.tenant_id,
            stream_id=self.stream_id,
            epoch=self.epoch,
            block=self._block if is_new else -1,
            content=encode_block(self.num_cached(), self._ended_unix_s, bytes(self._pieces)) if is_new else b"",
            number=self.notes.number,
            pieces=self._told_pieces,
            ends=ends,
            end=end,
        )

    def note_written(self, num_bytes: int) -> None:
        """So many bytes of its pieces are recorded."""
        self._told_places = self._written_places
        self._num_written = num_bytes
        if self._can_be_plain and num_bytes > 0 and not self.is_lost:
            self.notes.words = self.words
        if num_bytes >= BLOCK_BYTES:
            del self._pieces[:num_bytes]
            self._block, self._num_written = self._block + 1, 0
            self._told_pieces = self._told_pieces[1], self._told_pieces[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pieces of its last block, as they were last written."""
        return len(self._pieces)


class TenantFrames:
    """Belongs to the event loop.

    Args:
        tenant_id: whose streams.
    """

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.words = bytearray()
        """``frame_words`` of each token since the last turn."""
        self.num_streams = 0
        self.is_shared = False
        """Another gateway has taken a stream over, and may not have written yet what is in frames here."""
        self._behind: dict[OwnedStream, tuple[int, int]] = {}
        """Streams that count on frames: turn of the last block of each, and words of all frames then; oldest first."""
        self._num_words = 0
        self._kept: deque[int] = deque()
        """Turns of the frames that Redis has."""

    def note_block(self, stream: OwnedStream, turn: int) -> None:
        """All that a stream had in the frames up to a turn is in its block."""
        self._behind.pop(stream, None)
        self._behind[stream] = turn, self._num_words

    def leave(self, stream: OwnedStream) -> None:
        """A stream counts on frames no more."""
        self._behind.pop(stream, None)
        self.num_streams -= 1

    def streams(self) -> list[OwnedStream]:
        """Streams that count on frames."""
        return list(self._behind)

    def due(self, turn: int) -> list[OwnedStream]:
        """Streams whose blocks are to be written now."""
        if not self._behind:
            return []
        most, num_words = 1 + len(self._behind) // (_MOST_TURNS // 8), self._num_words
        found: list[OwnedStream] = []
        for stream, (at_turn, at_words) in self._behind.items():
            age = max((turn - at_turn) / _MOST_TURNS, (num_words - at_words) / _MOST_WORDS)
            if age < _LEAST_AGE or (age < 1 and len(found) >= most):
                break
            found.append(stream)
        return found

    def take(self, turn: int) -> StreamFrame | None:
        """The frame of a turn; ``None`` where nothing came."""
        if not self.words:
            return None
        oldest = next(iter(self._behind.values()), (turn, 0))[0] - _SPARE_TURNS
        dropped = []
        while self._kept and self._kept[0] <= oldest:
            dropped.append(self._kept.popleft())
        entries = bytes(self.words)
        self._num_words += len(entries) // WORD_BYTES
        self.words.clear()
        self._kept.append(turn)
        return StreamFrame(self.tenant_id, turn, entries, dropped)

    def take_back(self, frame: StreamFrame) -> None:
        """A frame may not have been written: what it drops is dropped with another one."""
        self._kept.extendleft(reversed(frame.dropped))

    def rest(self, turn: int) -> StreamFrame | None:
        """An empty frame that drops all others, once no stream is left; ``None`` where there are none to be dropped."""
        if self.is_shared or not self._kept:
            return None
        return StreamFrame(self.tenant_id, turn, b"", list(self._kept))
