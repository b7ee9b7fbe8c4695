"""A record as chunks of its answer: as they were recorded, and what came since the last look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson

from stratos.common.errors import StratosError, StreamCancelled, StreamGone
from stratos.core.generation import ChoiceDelta
from stratos.core.requests.records import PositionLogprobs
from stratos.store.sealed.stream_store import Found, StreamRecord
from stratos_gateway.answering.request import PreparedGeneration
from stratos_gateway.generation.fanout import fresh_journals, note_continuation
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.preparation.options import num_prompt_logprobs
from stratos_gateway.streams.codec import Piece, decode_block, decode_end
from stratos_gateway.streams.cursor import FROM_THE_START, Cursor
from stratos_gateway.streams.owned import Ownership


class RecordReading:
    """Belongs to one connection.

    Args:
        prepared: the request of the answer.
        note_end: told in which second the answer ended.
        cursor: what the client has.
    """

    def __init__(
        self,
        prepared: PreparedGeneration,
        note_end: Callable[[int], None],
        cursor: Cursor = FROM_THE_START,
    ) -> None:
        options = prepared.options
        stops = options.stop, options.include_stop
        self._num_choices, self._note_end = options.n, note_end
        self._has_logprobs = options.num_logprobs is not None
        self._has_prompt = num_prompt_logprobs(options) is not None
        self._num_prompt_tokens = sum(spec.num_told_prompt_tokens for spec in prepared.specs)
        self._num_prior = sum(spec.num_prior_tokens for spec in prepared.specs)
        self._token_of = prepared.token_of
        self.journals = [fresh_journals(spec, options.n, stops, prepared.tokenizer) for spec in prepared.specs]
        """By prompt."""
        for number, choice in enumerate(self.choices):
            choice.cuts = [choice.num_prior + cut for cut in cursor.cuts(number)]
        self.num_cached: Sequence[int] = ()
        """Tokens of each prompt that a prefix cache had."""
        self.prompt_logprobs: list[Sequence[PositionLogprobs]] = [()] * len(self.journals)
        """Of each prompt's tokens, where they were asked for."""
        self.block = 0
        """Number of the block that is read next."""
        self._num_before, self._num_pieces = 0, 0
        """Pieces of the blocks before it, and its own."""
        self._tail: list[int] = []
        """Tokens that were read before any block had them: pieces behind those of the blocks."""
        self.ready: list[ChoiceChunk] = []
        """Chunks that were not taken yet."""
        self.is_done = False
        self.failure: StratosError | None = None
        """Why nothing follows."""

    @property
    def choices(self) -> list[ChoiceJournal]:
        """Over all prompts."""
        return [choice for choices in self.journals for choice in choices]

    @property
    def num_output(self) -> int:
        """Tokens of the output so far."""
        return sum(len(choice.ids) for choice in self.choices)

    @property
    def usage(self) -> Usage:
        """Counts of the whole answer, as the gateway that generates it tells them."""
        num_cached = sum(self.num_cached) if self._num_prompt_tokens else 0
        return Usage(self._num_prompt_tokens, self.num_output - self._num_prior, num_cached)

    def absorb(self, record: StreamRecord) -> None:
        """Read what is new in a record; raises ``StreamGone`` where it cannot be read."""
        if record.found is Found.NONE:
            raise StreamGone("this stream is kept no more")
        for number, content in enumerate(record.blocks, self.block):
            self._absorb_block(number, content)
        self._absorb_tail(record.tail)
        match record.found:
            case Found.CANCELLED:
                self.failure = StreamCancelled("this stream was cancelled")
            case Found.FAILED:
                self.failure = decode_failure(record.end)
            case Found.DONE:
                if not all(choice.is_finished for choice in self.choices):
                    raise StreamGone("the record of this stream cannot be read")
                self.is_done, self.num_cached = True, decode_end(record.end)

    def _absorb_block(self, number: int, content: bytes) -> None:
        num_prompts = len(self.journals)
        try:
            num_choices = num_prompts * self._num_choices
            block = decode_block(
                content, num_prompts, num_choices, has_logprobs=self._has_logprobs, has_prompt=self._has_prompt
            )
        except ValueError as error:
            raise StreamGone("the record of this stream cannot be read") from error
        if number != self.block:
            self._num_before += self._num_pieces
            self._num_pieces = 0
        self.num_cached = block.num_cached
        if block.ended_unix_s:
            self._note_end(block.ended_unix_s)
        for piece in block.pieces[self._num_pieces :]:
            self._read(piece if not self._tail else self._without_tail(piece))
        self.block, self._num_pieces = number, len(block.pieces)

    def _without_tail(self, piece: Piece) -> Piece:
        """Part of a piece that was not read before; a gateway that takes over may put tokens together otherwise."""
        known, ids = self._tail[: len(piece.ids)], list(piece.ids)
        if known != ids[: len(known)]:
            raise StreamGone("the record of this stream cannot be read")
        del self._tail[: len(known)]
        return Piece(piece.choice, ids[len(known) :], ends=piece.ends, cause=piece.cause)

    def _absorb_tail(self, tail: Mapping[int, int]) -> None:
        """Read tokens that no block has yet."""
        first = self._num_before + self._num_pieces
        while (token_id := tail.get(first + len(self._tail))) is not None:
            self._read(Piece(0, (token_id,)))
            self._tail.append(token_id)

    def ownership(self, taken: StreamRecord) -> Ownership:
        """Where the one begins who has taken the record over, and has read it."""
        num_pieces = self._num_before + self._num_pieces
        block = self.block + (1 if self._num_pieces else 0)
        return Ownership(
            epoch=taken.epoch, number=taken.number, block=block, num_pieces=num_pieces, tail=tuple(self._tail)
        )

    def _read(self, piece: Piece) -> None:
        choice, prompt = self.choices[piece.choice], piece.choice // self._num_choices
        if piece.prompt:
            self.prompt_logprobs[prompt] = piece.prompt
        choice.accept(
            ChoiceDelta(
                index=choice.index,
                offset=len(choice.ids),
                token_ids=piece.ids,
                logprobs=piece.logprobs,
                finish_reason=piece.cause if piece.ends else None,
            )
        )
        is_cut = choice.has_cuts
        while (chunk := choice.take()) is not None:
            chunk.index = piece.choice
            if chunk.is_first:
                chunk.prompt_logprobs = self.prompt_logprobs[prompt]
            self.ready.append(chunk)
            if not is_cut:
                break
        note_continuation(self.ready, self.journals, self._token_of)


def encode_failure(error: StratosError) -> bytes:
    """The end of a stream that failed."""
    return orjson.dumps({"code": error.code, "message": error.public_text or error.message})


def decode_failure(content: bytes) -> StreamGone:
    """The way back, for its client."""
    try:
        value = orjson.loads(content)
        error = StreamGone(f"this stream failed: {value['code']}: {value['message']}")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        error = StreamGone("this stream failed")
    error.code = "stream_failed"
    return error
