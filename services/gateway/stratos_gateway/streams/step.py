"""Records around a request: joined before its answer is sought, left at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Join the request with the record that it wants; raises like ``StreamJoin.join``."""
        is_wanted = request.body_text and isinstance(request.prepared, PreparedGeneration)
        return self._joined(request) if is_wanted else None

    @asynccontextmanager
    async def _joined(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        joined = await self._join.join(request)
        try:
            yield
        finally:
            if joined is not None:
                joined.leave(request.error)


class RecordedSource(Source[ChunkOutput]):
    """Answers requests whose answer has a record already."""

    def open(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[ChunkOutput] | None:
        """The recorded answer, or ``None`` where there is none."""
        return None if request.followed is None else request.followed.open(request)
