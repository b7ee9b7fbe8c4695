"""The answer of a generation route on the wire: a stream of events, or one JSON object."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from http import HTTPStatus
from types import TracebackType
from typing import Any

from starlette.responses import Response

from stratos.common.errors import StratosError
from stratos_gateway.answering.output import ChunkOutput, Chunks, NothingLeft, TakeChunks
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.answering.whole import first_part, is_short, rendered, send_whole
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import EventStream, KeptAlive
from stratos_gateway.openai.chunks import ChoiceChunk

_log = logging.getLogger(__name__)


class ChunkSender:
    """Shared by the generation routes.

    Args:
        limits: when a silent stream gets a comment.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits

    def send(self, request: ClientRequest[PreparedGeneration], output: ChunkOutput) -> Coroutine[Any, Any, None]:
        """Write an answer to the client, as its tenant's content policy lets it out."""
        if type(output) is NothingLeft:  # ``isinstance`` asks a protocol's metaclass, which takes 2 us
            return send_whole(request, Response(status_code=HTTPStatus.NO_CONTENT))
        chunks = output if request.screen is None else request.screen.shown(output)
        send = self._send_stream if request.prepared.options.stream else self._send_whole
        return send(request, output, chunks)

    def waiting(self, request: ClientRequest[PreparedGeneration]) -> AbstractAsyncContextManager[None] | None:
        """Inside, a silent stream gets comments, whichever source its answer is sought at; ``None`` for whole answers.

        An error of what comes between two sources is the last event of a stream that a comment has begun.
        """
        if not request.prepared.options.stream:
            return None
        stream = request.exchange.stream = EventStream(request.send, request.http.scope)
        return _StreamWaiting(request, stream, self._limits.sse_keepalive_s)

    async def _send_whole(
        self, request: ClientRequest[PreparedGeneration], output: ChunkOutput, chunks: Chunks
    ) -> None:
        found = await chunks.finish()
        if (check := request.prepared.check) is not None:
            check.require(found)
        request.note_sent(replace(chunk) for chunk in found)
        usage = output.usage
        response = await rendered(request.prepared.renderer, found, usage)
        if request.stream_id:
            request.begin_answer(output)  # its record has all of it by now, for the same request again
        await request.prepared.keep(usage)
        request.prepared.renderer.note_kept()
        request.begin_answer(output)
        await send_whole(request, response)
        request.end_whole()

    async def _send_stream(
        self, request: ClientRequest[PreparedGeneration], output: ChunkOutput, chunks: Chunks
    ) -> None:
        """Errors before the first byte have a status of their own; later ones are the last event.

        Where another source follows, its answer goes on in the stream that comments have begun. The last chunk leaves
        together with the stream's end: a write is a call of the system, and wakes the client.
        """
        stream, renderer, check = request.exchange.stream, request.prepared.renderer, request.prepared.check
        last, unsent = b"", list[ChoiceChunk]()
        assert stream is not None, "opened around the sources"

        def confirm(fresh: list[ChoiceChunk]) -> None:
            stream.keep_alive = renderer.keep_alive
            output.confirm(fresh)
            if request.when_sent is not None:
                request.note_sent(fresh)

        def send_now(take: TakeChunks) -> bool:
            if not (stream.can_write_now and request.has_answered):
                return False  # the first part may be long
            fresh = take()
            if check is not None and not check.passes(fresh):
                return True  # the task that waits for what follows tells it
            stream.write_now(renderer.stream_part(fresh))
            confirm(fresh)
            return True

        def send_token(token_id: int, text: str) -> bool:
            if not (stream.can_write_now and request.has_answered) or request.when_sent is not None:
                return False
            part = renderer.token_part(token_id, text)
            if part:
                stream.write_now(part)
            if part is not None and check is not None:
                check.add(0, text)
            return part is not None

        if chunks is output:
            output.send_now, output.send_token = send_now, send_token
        try:
            while fresh := await chunks.news():
                if check is not None:
                    check.require(fresh)
                if request.has_answered:
                    part = renderer.stream_part(fresh)
                else:
                    request.begin_answer(output)
                    part = renderer.stream_part(fresh) if is_short(fresh) else await first_part(renderer, fresh)
                if chunks is output and output.is_ended:
                    last, unsent = last + part, unsent + fresh
                    continue
                await stream.write(part)
                confirm(fresh)
            if check is not None:
                check.require(())
            usage = output.usage
            await request.prepared.keep(usage)
            end = renderer.stream_end(usage)
        except StratosError as error:
            if unsent:
                await stream.write(last)
                confirm(unsent)
            is_next_tried = output.gives_way(error) and not request.has_answered
            if is_next_tried or not stream.is_started:
                raise
            return await _end_with(request, stream, error)
        finally:
            output.send_now = output.send_token = None  # both know the output
        await stream.end(last + end)
        confirm(unsent)
        request.end_whole()


class _StreamWaiting(KeptAlive):
    def __init__(self, request: ClientRequest[PreparedGeneration], stream: EventStream, idle_s: float) -> None:
        super().__init__(stream, idle_s)
        self._request = request

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        await super().__aexit__(kind, error, trace)
        if not (isinstance(error, StratosError) and self._stream.is_started):
            return False
        await _end_with(self._request, self._stream, error)
        return True


async def _end_with(request: ClientRequest[PreparedGeneration], stream: EventStream, error: StratosError) -> None:
    renderer = request.prepared.renderer
    label = request.exchange.span.trace.label(renderer.answer.id)
    _log.warning("stream %s ends with an error: %s: %s", label, error.code, error.message)
    request.fail_in_stream(error)
    await stream.end(renderer.stream_failure(error))
