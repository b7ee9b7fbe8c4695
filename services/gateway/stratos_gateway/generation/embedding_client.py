"""Calls to the prefill workers that embed, over one channel per worker process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc.aio

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.errors import WorkerLost
from stratos.core.placement import WorkerRef
from stratos.core.requests.embedding import PoolingKind
from stratos.core.trace import NO_TRACE, TraceContext
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.channel_pool import ChannelPool
from stratos.rpc.codec.trace import trace_to_pb
from stratos_gateway.generation.generation import Caller
from stratos_gateway.models.catalogue import ModelTarget

MAX_CHANNELS = 64
_POOLING = {PoolingKind.LAST: embed_pb2.POOLING_LAST, PoolingKind.MEAN: embed_pb2.POOLING_MEAN}


class Unreachable(WorkerLost):
    """The worker was gone before it got the call, so the call is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """What to embed and how, checked and resolved."""

    caller: Caller
    target: ModelTarget
    inputs: tuple[tuple[int, ...], ...]
    pooling: PoolingKind
    normalizes: bool
    num_dimensions: int | None
    trace: TraceContext = NO_TRACE


class EmbeddingClient:
    """Belongs to the event loop.

    Args:
        connect_timeout_s: longest wait for a connection.
    """

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._channels = ChannelPool(MAX_CHANNELS)

    async def embed(
        self, worker: WorkerRef, spec: EmbeddingSpec, request_id: str, attempt: int, left_s: float
    ) -> list[bytes]:
        """Vectors of the inputs, float32; cancelling ends the work at the worker.

        Raises:
            Unreachable: no connection.
            WorkerLost: the worker was lost in the middle of the call.
            StratosError: what the worker answers.
        """
        peer = await self._connected(worker)
        message = _to_pb(spec, request_id, attempt, left_s)
        async with translate_errors(peer=worker.worker_id):
            answer = await embed_pb2_grpc.EmbedServiceStub(peer).Embed(message)
        if len(answer.embeddings) != len(spec.inputs):
            raise WorkerLost(f"{worker.worker_id} answered {len(answer.embeddings)} of {len(spec.inputs)} inputs")
        return [embedding.values for embedding in answer.embeddings]

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()

    async def _connected(self, worker: WorkerRef) -> grpc.aio.Channel:
        peer = self._channels.get(worker.address, worker.incarnation)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await peer.channel_ready()
        except TimeoutError as error:
            self._channels.drop(worker.address, worker.incarnation)
            raise Unreachable(f"{worker.worker_id} cannot be reached") from error
        return peer


def _to_pb(spec: EmbeddingSpec, request_id: str, attempt: int, left_s: float) -> embed_pb2.EmbedRequest:
    message = embed_pb2.EmbedRequest(
        request_id=request_id,
        attempt=attempt,
        inputs=[embed_pb2.EmbedInput(token_ids=ids) for ids in spec.inputs],
        pooling=_POOLING[spec.pooling],
        normalizes=spec.normalizes,
        model_digest=spec.target.model_digest,
        adapter_digest=spec.target.adapter_digest,
        adapter_uri=spec.target.adapter_uri,
        cache_salt=spec.caller.cache_salt,
        deadline_ms=max(round(left_s * 1000), 1),
        tenant=spec.caller.tenant,
        priority_class=spec.caller.priority_class,
        trace=trace_to_pb(spec.trace),
    )
    if spec.num_dimensions is not None:
        message.num_dimensions = spec.num_dimensions
    return message
