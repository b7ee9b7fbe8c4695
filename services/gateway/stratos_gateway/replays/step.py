"""Requests with a key at routes that answer with one message: the same answer for each, computed once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

from starlette.responses import Response

from stratos_gateway.answering.contract import AnswerSender, Step
from stratos_gateway.answering.output import ChunkOutput, Output, StandingOutput
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.replays.once import REPLAYED, KeptAnswers
from stratos_gateway.streams.asking import KEY_HEADER, NO_STREAM, STREAM_HEADER, idempotency_key

O = TypeVar("O", bound=Output)  # noqa: E741 - an output


class KeptStep(Step):
    """Shared by the requests of all these routes.

    Args:
        kept: answers.
    """

    def __init__(self, kept: KeptAnswers) -> None:
        self._kept = kept

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Let a request with a key be answered once; raises like ``KeptAnswers.once``."""
        return self._around(request) if KEY_HEADER in request.http.headers else None

    @asynccontextmanager
    async def _around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        http, headers = request.http, request.exchange.headers
        key, path = idempotency_key(http.headers), http.url.path
        async with self._kept.once(request.tenant.id, key, path, request.body_text) as turn:
            if turn is None:
                headers.append((STREAM_HEADER, NO_STREAM))
                yield
            elif turn.answer:
                headers.append(REPLAYED)
                request.followed = KeptMessage(turn.answer)
                yield
            else:
                try:
                    yield
                finally:
                    turn.made = request.whole


class _KeptOutput(StandingOutput):
    def __init__(self, content: bytes) -> None:
        self.content = content


class KeptMessage:
    """The answer to an earlier request.

    Args:
        content: of its message.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content

    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[ChunkOutput]:
        """Nothing runs."""
        yield _KeptOutput(self._content)


class KeptSender(Generic[O]):
    """Writes kept answers as they were.

    Args:
        inner: writes all others.
    """

    def __init__(self, inner: AnswerSender[O]) -> None:
        self._inner = inner
        self.waiting = inner.waiting

    async def send(self, request: ClientRequest[Any], output: Any) -> None:
        """Write an answer; raises what ``output`` raises."""
        if isinstance(output, _KeptOutput):
            await send_whole(request, Response(output.content, media_type="application/json"))
        else:
            await self._inner.send(request, output)
