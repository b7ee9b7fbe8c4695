"""An answer that has a record already: shown again from its first token, followed while another gateway generates it,
and generated here from where the record ends once that one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from stratos.common.background import happens
from stratos.common.errors import DependencyDown, StratosError, StreamCancelled
from stratos.core.ledger.pricing import Times
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord
from stratos_gateway.answering.draft import Draft
from stratos_gateway.answering.output import ChunkOutput, collected
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.generation.source import GeneratedOutput, WorkersSource
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.streams.codec import decode_places
from stratos_gateway.streams.cursor import Cursor
from stratos_gateway.streams.desk import SealedStreams
from stratos_gateway.streams.owned import OwnedStream, Ownership
from stratos_gateway.streams.reading import RecordReading

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
    may_take: bool
    """Whether it goes on here once its gateway is gone; one without a client is left to the gateways' queue."""
    may_attach: bool
    """Whether it goes on with what its worker runs still."""
    take: Callable[[Ownership, GeneratedOutput], OwnedStream]
    """Records the stream from there on, as this gateway's own."""


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
        self._reading = RecordReading(request.prepared, following.note_end, following.cursor)
        self._inner: GeneratedOutput | None = None
        self._num_taken_with = 0
        self._lost: StratosError | None = None
        self._is_lost = asyncio.Event()
        self._found = found
        self._reading.absorb(found)

    def fail(self, error: StratosError) -> None:
        """End with this error, unless everything has come already."""
        self._lost = error
        self._is_lost.set()

    async def news(self) -> list[ChoiceChunk]:
        """Chunks as they were recorded, then as they come; raises like every output."""
        while True:
            reading = self._reading
            if isinstance(reading.failure, StreamCancelled):
                raise reading.failure
            if reading.ready:
                chunks, reading.ready = reading.ready, []
                return chunks
            if reading.failure is not None:
                raise reading.failure
            if reading.is_done:
                return []
            if self._lost is not None:
                raise self._lost
            if self._inner is not None:
                return await self._inner.news()
            if self._found.found is Found.TAKEN:
                await self._take_over(self._found)
            elif not await happens(self._is_lost, self._following.poll_s):
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
        return self._reading.usage

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

    async def _look(self) -> None:
        following, deadline = self._following, asyncio.get_running_loop().time() + _PATIENCE_S
        ask = StreamAsk(
            tenant_id=following.tenant_id, stream_id=following.stream_id, first_block=self._reading.block,
            seen=self._found.seen, may_take=following.may_take, wants_head=False,
        )  # fmt: skip
        while True:
            try:
                self._found = await following.store.open(ask)
                break
            except (DependencyDown, RedisError) as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise DependencyDown("the record of this stream cannot be read") from error
                await asyncio.sleep(following.poll_s)
        self._reading.absorb(self._found)

    async def _take_over(self, found: StreamRecord) -> None:
        """Generate from where the record ends; the gateway that did before is fenced off."""
        following, request = self._following, self._request
        prepared, reading = request.prepared, self._reading
        await request.redeem(reading.usage.num_output_tokens > 0)
        places = decode_places(found.end if following.may_attach else b"", len(prepared.specs))
        specs = tuple(
            replace(spec, epoch=found.epoch, runs_at=place) for spec, place in zip(prepared.specs, places, strict=True)
        )
        request.prepared = replace(prepared, specs=specs)
        for choice in reading.choices:
            choice.num_delivered = len(choice.ids) - choice.num_prior
        self._num_taken_with = reading.num_output
        inner = await self._stack.enter_async_context(following.workers.resumed(request, journals=reading.journals))
        for generation, logprobs in zip(inner.generations, reading.prompt_logprobs, strict=True):
            generation.transcript.accept_prompt_logprobs(logprobs)  # what its client may have is not asked for again
        if reading.num_cached and self._num_taken_with:
            for generation, cached in zip(inner.generations, reading.num_cached, strict=True):
                generation.transcript.num_inherited_cached = cached
        self._inner = inner
        # Blocks of the older owner stay as they are: what it had not recorded is computed again.
        owned = following.take(reading.ownership(found), inner)
        owned.skip([choice.num_untaken for choice in reading.choices])


@dataclass(frozen=True, slots=True)
class FollowedAnswer:
    """A recorded answer that a request is shown."""

    following: Following
    found: StreamRecord

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[FollowedOutput]:
        """The answer, which ends with its request's place; what is generated here ends with the context."""
        async with AsyncExitStack() as stack:
            output = FollowedOutput(self.following, self.found, request, stack)
            ends = self.following.workers.ends_by(request, output.fail, lambda: request.has_answered)
            stack.enter_context(ends)
            yield output
