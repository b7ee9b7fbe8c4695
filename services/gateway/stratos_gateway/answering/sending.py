"""The answer of a generation route on the wire: a stream of events, or one JSON object."""

from __future__ import annotations

import logging
from dataclasses import replace

from stratos.common.errors import StratosError
from stratos_gateway.answering.output import ChunkOutput, Chunks
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import DONE, EventStream, encode_events

_log = logging.getLogger(__name__)


class ChunkSender:
    """Shared by the generation routes.

    Args:
        limits: how long a slow client is waited for, when a silent stream gets a comment.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits

    async def send(self, request: ClientRequest[PreparedGeneration], output: ChunkOutput) -> None:
        """Write an answer to the client, as its tenant's content policy lets it out."""
        chunks = output if request.screen is None else request.screen.shown(output)
        if request.prepared.options.stream:
            await self._send_stream(request, output, chunks)
        else:
            await self._send_whole(request, output, chunks)

    async def _send_whole(
        self, request: ClientRequest[PreparedGeneration], output: ChunkOutput, chunks: Chunks
    ) -> None:
        found = await chunks.finish()
        request.note_sent(replace(chunk) for chunk in found)
        response = OrjsonResponse(request.prepared.renderer.body(found, output.usage))
        await response(request.http.scope, request.http.receive, request.send)
        request.end_whole()

    async def _send_stream(
        self, request: ClientRequest[PreparedGeneration], output: ChunkOutput, chunks: Chunks
    ) -> None:
        """Errors before the first event have a status of their own; later ones are the last event."""
        stream, renderer = EventStream(request.send, self._limits.write_timeout_s), request.prepared.renderer
        idle_s = 0.0 if output.may_give_way else self._limits.sse_keepalive_s
        try:
            async with stream.kept_alive(idle_s):
                while fresh := await chunks.news():
                    await stream.write(encode_events(renderer.events(fresh)))
                    output.confirm(fresh)
                    request.note_sent(fresh)
            usage = [renderer.usage_event(output.usage)] if renderer.answer.include_usage else []
            await stream.write(encode_events(usage) + DONE)
        except StratosError as error:
            if not stream.is_started:
                raise
            label = request.exchange.span.trace.label(renderer.answer.id)
            _log.warning("stream %s ends with an error: %s: %s", label, error.code, error.message)
            request.fail_in_stream(error)
            await stream.write(encode_events([error_body(error)]))
            return await stream.end()
        await stream.end()
        request.end_whole()
