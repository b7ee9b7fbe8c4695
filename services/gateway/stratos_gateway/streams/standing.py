"""A background response as it stands: waiting, written so far, or as it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from stratos.common.errors import StratosError, StreamGone
from stratos.store.sealed.stream_store import Found, StreamRecord
from stratos_gateway.answering.output import ChunkOutput, NothingLeft, StandingOutput
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Renderer
from stratos_gateway.responses.rendering import ResponseRenderer
from stratos_gateway.streams.codec import decode_head
from stratos_gateway.streams.identity import EndTime
from stratos_gateway.streams.reading import RecordReading


def standing_response(prepared: PreparedGeneration, record: StreamRecord) -> dict[str, Any]:
    """The response of a record.

    Args:
        prepared: its request.
        record: from its first block on.

    Raises:
        StreamGone: the record cannot be read.
    """
    head, ended = decode_head(record.head), EndTime()
    if head is None:
        raise StreamGone("the record of this response cannot be read")
    shown = prepared.rebuilt(replace(head.identity, wall_clock=ended))
    reading = RecordReading(shown, ended.set)
    reading.absorb(record)
    renderer = shown.renderer
    assert isinstance(renderer, ResponseRenderer), "of a response"
    match record.found:
        case Found.DONE:
            return renderer.body(reading.ready, reading.usage)
        case Found.CANCELLED:
            return renderer.standing("cancelled", reading.ready)
        case Found.FAILED:
            return renderer.standing("failed", reading.ready, reading.failure)
    return renderer.standing("in_progress" if record.epoch else "queued", reading.ready)


class _StandingRenderer(Renderer):
    """Tells a response that is made already."""

    def __init__(self, inner: Renderer, response: dict[str, Any]) -> None:
        super().__init__(inner.answer)
        self._inner = inner
        self._response = response

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        return self._response

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        return b""

    def stream_end(self, usage: Usage) -> bytes:
        return b""

    def stream_failure(self, error: StratosError) -> bytes:
        return self._inner.stream_failure(error)


class StandingAnswer:
    """The answer to a request for a background response.

    Args:
        prepared: the request.
        response: as it stands.
    """

    def __init__(self, prepared: PreparedGeneration, response: dict[str, Any]) -> None:
        self.renderer: Renderer = _StandingRenderer(prepared.renderer, response)

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[ChunkOutput]:
        """Nothing runs."""
        yield StandingOutput()


async def keep_nothing(usage: Usage) -> None:
    """Do nothing: who computes the answer keeps it."""


class AllSeen:
    """The rest of an answer whose client has all of it."""

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[ChunkOutput]:
        """Nothing runs."""
        yield NothingLeft()
