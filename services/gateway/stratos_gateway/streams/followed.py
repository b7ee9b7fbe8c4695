"""An answer that has a record already: shown again from its first token, followed while another gateway generates it,
and generated here from where the record ends once that one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, StreamCancelled, StreamGone
from stratos.core.generation import ChoiceDelta
from stratos.core.ledger.pricing import Times
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import ChunkOutput, collected
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.generation.fanout import fresh_journals
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.generation.source import GeneratedOutput, WorkersSource
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.streams.codec import Piece, decode_block, decode_end
from stratos_gateway.streams.cursor import Cursor
from stratos_gateway.streams.desk import SealedStreams
from stratos_gateway.streams.owned import OwnedStream

_PATIENCE_S = 10.0
"""Time without a look at the record, while Redis does not answer, after which the client is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Where a record is, and how its stream goes on here."""

    store: SealedStreams
    tenant_id: str
    stream_id: str
    cursor: Cursor
    poll_s: float
    workers: WorkersSource
    note_end: Callable[[int], None]
    """Told in which second the answer ended."""
    take: Callable[[int, int, GeneratedOutput], OwnedStream]
    """Records the stream from an epoch and a block on, as this gateway's own."""


class FollowedOutput(ChunkOutput):
    """One recorded answer for one more connection.

    Args:
        following: the record.
        found: what it was a moment ago.
        request: of the client, with the identity of the answer.
        stack: of the output's life.
    """

    counts_tokens_live = True
    tells_load = False

    def __init__(
        self,
        following: Following,
        found: StreamRecord,
        request: ClientRequest[PreparedGeneration],
        stack: AsyncExitStack,
    ) -> None:
        self._following = following
        self._request = request
        self._stack = stack
        options, workers = request.prepared.options, following.workers
        stops = options.stop, options.include_stop
        self._num_choices = options.n
        self._journals = [fresh_journals(spec, options.n, stops, workers.tokenizer) for spec in request.prepared.specs]
        for number, choice in enumerate(self._choices):
            choice.cuts = following.cursor.cuts(number)
        self._num_cached: Sequence[int] = ()
        self._block = self._num_pieces = 0
        """Block that is read next, and pieces of it that were read."""
        self._ready: list[ChoiceChunk] = []
        self._inner: GeneratedOutput | None = None
        self._num_taken_with = 0
        self._is_done = False
        self._found = found
        self._absorb(found)

    @property
    def _choices(self) -> list[ChoiceJournal]:
        return [choice for choices in self._journals for choice in choices]

    async def news(self) -> list[ChoiceChunk]:
        """Chunks as they were recorded, then as they come; raises like every output."""
        while True:
            if self._ready:
                chunks, self._ready = self._ready, []
                return chunks
            if self._inner is not None:
                return await self._inner.news()
            if self._is_done:
                return []
            if self._found.found is Found.TAKEN:
                await self._take_over(self._found.epoch)
            else:
                await asyncio.sleep(self._following.poll_s)
                await self._look()

    async def finish(self) -> list[ChoiceChunk]:
        """All chunks once the answer is whole."""
        return await collected(self)

    def end_choice(self, index: int, reason: str) -> None:
        """Nothing runs here that could be ended, unless the stream was taken over."""
        if self._inner is not None:
            self._inner.end_choice(index, reason)

    def confirm(self, chunks: Sequence[ChoiceChunk]) -> None:
        """These have been written to the client."""
        if self._inner is not None:
            self._inner.confirm(chunks)

    @property
    def usage(self) -> Usage:
        """Counts of the whole answer, as the gateway that generates it tells them."""
        if self._inner is not None:
            return self._inner.usage
        num_prompt = sum(len(spec.prompt_ids) for spec in self._request.prepared.specs)
        return Usage(num_prompt, self._num_output, sum(self._num_cached))

    @property
    def num_limited_tokens(self) -> int:
        """Tokens that were generated here."""
        return 0 if self._inner is None else self._inner.num_output_tokens - self._num_taken_with

    def times(self, received_s: float) -> Sequence[Times]:
        """None: the client that waited for the first token was another gateway's."""
        return ()

    def sections(self) -> Mapping[str, Any]:
        """Who answered."""
        return {"source": "stream_record"} if self._inner is None else self._inner.sections()

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        """Share of the whole answer, where it was generated to its end here: it replaces the older gateway's."""
        return () if self._inner is None else self._inner.drafts(error)

    @property
    def _num_output(self) -> int:
        return sum(len(choice.ids) for choice in self._choices)

    async def _look(self) -> None:
        following, deadline = self._following, asyncio.get_running_loop().time() + _PATIENCE_S
        ask = StreamAsk(
            tenant_id=following.tenant_id, stream_id=following.stream_id, first_block=self._block, may_take=True
        )
        while True:
            try:
                self._found = await following.store.open(ask)
                break
            except (DependencyDown, RedisError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise DependencyDown("the record of this stream cannot be read") from error
                await asyncio.sleep(following.poll_s)
        self._absorb(self._found)

    def _absorb(self, record: StreamRecord) -> None:
        """Read what is new in a record."""
        if record.found is Found.NONE:
            raise StreamGone("this stream is kept no more")
        if record.found is Found.CANCELLED:
            raise StreamCancelled("this stream was cancelled")
        num_prompts = len(self._journals)
        for number, content in enumerate(record.blocks, self._block):
            try:
                block = decode_block(content, num_prompts, num_prompts * self._num_choices)
            except ValueError as error:
                raise StreamGone("the record of this stream cannot be read") from error
            known = self._num_pieces if number == self._block else 0
            self._num_cached = block.num_cached
            if block.ended_unix_s:
                self._following.note_end(block.ended_unix_s)
            for piece in block.pieces[known:]:
                self._read(piece)
            self._block, self._num_pieces = number, len(block.pieces)
        if record.found is Found.DONE:
            if not all(choice.is_finished for choice in self._choices):
                raise StreamGone("the record of this stream cannot be read")
            self._is_done, self._num_cached = True, decode_end(record.end)

    def _read(self, piece: Piece) -> None:
        choice = self._choices[piece.choice]
        choice.accept(
            ChoiceDelta(
                index=choice.index,
                offset=len(choice.ids),
                token_ids=piece.ids,
                finish_reason=piece.cause if piece.ends else None,
            )
        )
        while (chunk := choice.take()) is not None:
            chunk.index = piece.choice
            self._ready.append(chunk)
            if not choice.has_cuts:
                break

    async def _take_over(self, epoch: int) -> None:
        """Generate from where the record ends; the gateway that did before is fenced off."""
        following, request = self._following, self._request
        prepared = request.prepared
        specs = tuple(replace(spec, epoch=epoch) for spec in prepared.specs)
        request.prepared = replace(prepared, specs=specs)
        for choice in self._choices:
            choice.num_delivered = len(choice.ids)
        self._num_taken_with = self._num_output
        inner = await self._stack.enter_async_context(following.workers.resumed(request, journals=self._journals))
        if self._num_cached and self._num_taken_with:
            for generation, cached in zip(inner.generations, self._num_cached, strict=True):
                generation.transcript.num_inherited_cached = cached
        self._inner = inner
        # Blocks of the older owner stay as they are: what it had not recorded is computed again.
        owned = following.take(epoch, self._block + (1 if self._num_pieces else 0), inner)
        owned.skip([choice.num_untaken for choice in self._choices])


@dataclass(frozen=True, slots=True)
class FollowedAnswer:
    """A recorded answer that a request is shown."""

    following: Following
    found: StreamRecord

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[FollowedOutput]:
        """The answer; what is generated here ends with the context."""
        async with AsyncExitStack() as stack:
            yield FollowedOutput(self.following, self.found, request, stack)
