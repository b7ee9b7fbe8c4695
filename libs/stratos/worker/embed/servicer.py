"""gRPC edge of ``EmbedService``: one unary call, counted and let in by the drain gate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.errors import Draining, StratosError
from stratos.core.requests.embedding import EmbedCall, EmbeddingOutput
from stratos.rpc.codec.embedding import call_from_pb, response_to_pb
from stratos.rpc.tracing import SpanKind
from stratos.worker.context import WorkerContext
from stratos.worker.embed.checks import check_call
from stratos.worker.embed.embedder import Embedder

logger = logging.getLogger(__name__)


class EmbedServicer(embed_pb2_grpc.EmbedServiceServicer):
    """Serves gateways. Both arguments are called per request: the engine exists only after ``open``."""

    def __init__(self, context: Callable[[], WorkerContext], embedder: Callable[[], Embedder]) -> None:
        self._context = context
        self._embedder = embedder

    async def Embed(self, request: embed_pb2.EmbedRequest, context: Any) -> embed_pb2.EmbedResponse:
        """The vectors of all inputs."""
        shared = self._context()
        outcome = "bug"
        try:
            if shared.gate.is_shut:
                raise Draining("this worker takes no more; ask the router for a new placement")
            with shared.gate.embed_call():
                call = check_call(call_from_pb(request, shared.clock.now()), shared.engine.info, shared.features)
                outputs = await self._embed(call)
            outcome = "finished"
        except StratosError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            shared.metrics.embed_calls.labels(outcome).inc()
        return response_to_pb(outputs)

    async def _embed(self, call: EmbedCall) -> list[EmbeddingOutput]:
        """Embed inside the call's span."""
        logger.debug("request %s, attempt %d, embeds here", call.trace.label(call.request_id), call.attempt)
        with self._context().tracing.span(
            "embed",
            call.trace,
            kind=SpanKind.SERVER,
            begin_s=call.terms.arrival_s,
            generation_id=call.request_id,
            attempt=call.attempt,
            inputs=len(call.inputs),
            input_tokens=sum(map(len, call.inputs)),
        ) as span:
            outputs = await self._embedder().run(call)
            span.set(cached_tokens=sum(output.num_cached_tokens for output in outputs))
        return outputs
