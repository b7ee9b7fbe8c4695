"""Records around a request: joined before its answer is sought, left at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stratos_gateway.answering.contract import Source, Step
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.streams.join import StreamJoin


class StreamStep(Step):
    """Shared by all requests of the process.

    Args:
        join: requests with their records.
    """

    def __init__(self, join: StreamJoin) -> None:
        self._join = join

    @asynccontextmanager
    async def around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        """Join the request with the record that it wants; raises like ``StreamJoin.join``."""
        joined = None
        if request.body_text and isinstance(request.prepared, PreparedGeneration):
            joined = await self._join.join(request)
        try:
            yield
        finally:
            if joined is not None:
                joined.leave(request.error)


class RecordedSource(Source[ChunkOutput]):
    """Answers requests whose answer has a record already."""

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[ChunkOutput | None]:
        """The recorded answer, or ``None`` where there is none."""
        if request.followed is None:
            yield None
            return
        async with request.followed.open(request) as output:
            yield output
