"""Records around a request: joined before its answer is sought, left at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from stratos.common.errors import StratosError
from stratos_gateway.answering.chain import passes_on
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
            if joined is not None and _was_refused(request):
                await self._join.drop(joined)
            elif joined is not None:
                joined.leave(request.error)


def _was_refused(request: ClientRequest[Any]) -> bool:
    """One of several models refused before it said anything: the record is of that one, and another may answer."""
    is_new = bool(request.asked_text) and request.followed is None and not request.has_answered
    return passes_on(request) or (is_new and isinstance(request.error, StratosError))


class RecordedSource(Source[ChunkOutput]):
    """Answers requests whose answer has a record already."""

    def open(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[ChunkOutput] | None:
        """The recorded answer, or ``None`` where there is none."""
        return None if request.followed is None else request.followed.open(request)
