"""gRPC edge of ``EmbedService``: one unary call, counted and let in by the drain gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.errors import Draining, StratosError
from stratos.worker.context import WorkerContext
from stratos.worker.embed.codec import call_from_pb, response_to_pb
from stratos.worker.embed.embedder import Embedder


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
            if shared.gate.is_draining:
                raise Draining("this worker is leaving; ask the router for a new placement")
            with shared.gate.embed_call():
                call = call_from_pb(request, shared.engine.info, shared.clock.now())
                outputs = await self._embedder().run(call)
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
