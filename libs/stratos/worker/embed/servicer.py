"""gRPC edge of ``EmbedService``: one unary call, counted and let in by the drain gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import Draining, StratosError
from stratos.rpc.codec.embedding import call_from_pb, response_to_pb
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.checks import check_call
from stratos.worker.embed.embedder import Embedder
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedParts:
    """What embedding needs of a worker."""

    engine: EngineClient
    embedder: Embedder
    metrics: WorkerMetrics
    clock: Clock


class EmbedServicer(embed_pb2_grpc.EmbedServiceServicer):
    """Serves gateways. ``parts`` is called per request: the engine exists only after ``open``."""

    def __init__(self, parts: Callable[[], EmbedParts], gate: DrainGate) -> None:
        self._parts = parts
        self._gate = gate

    async def Embed(self, request: embed_pb2.EmbedRequest, context: Any) -> embed_pb2.EmbedResponse:
        """The vectors of all inputs."""
        parts = self._parts()
        outcome = "bug"
        try:
            if self._gate.is_draining:
                raise Draining("this worker is leaving; ask the router for a new placement")
            with self._gate.embed_call():
                call = check_call(call_from_pb(request, parts.clock.now()), parts.engine.info)
                outputs = await parts.embedder.run(call)
            outcome = "finished"
        except StratosError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            parts.metrics.embed_calls.labels(outcome).inc()
        return response_to_pb(outputs)
