"""Calls to the prefill workers that embed, over one channel per worker process."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio

from stratos.api.worker.v1 import embed_pb2, embed_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import FeatureUnavailable, WorkerLost
from stratos.core.placement import WorkerRef
from stratos.core.requests.embedding import EmbedCall
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.channel_pool import ChannelPool
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.rpc.codec.embedding import call_to_pb
from stratos.rpc.codec.unknown_fields import leave_out_later_fields
from stratos_gateway.access.contract import Gate

MAX_CHANNELS = 64


class Unreachable(WorkerLost):
    """The worker was gone before it got the call, so the call is not to blame."""


class EmbeddingClient:
    """Belongs to the event loop.

    Args:
        connect_timeout_s: longest wait for a connection.
        clock: of the deadlines.
        dialer: connects.
        gate: answers wait at it; ``None`` for a process that has none.
    """

    def __init__(
        self, connect_timeout_s: float, clock: Clock, dialer: Dialer = PLAIN, gate: Gate | None = None
    ) -> None:
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._gate = gate
        self._channels = ChannelPool(MAX_CHANNELS, ANY_WORKER, dialer)

    async def embed(self, worker: WorkerRef, call: EmbedCall) -> list[bytes]:
        """Vectors of the inputs, float32; cancelling ends the work at the worker.

        Raises:
            Unreachable: no connection.
            WorkerLost: the worker was lost in the middle of the call.
            StratosError: what the worker answers.
        """
        peer = await self._connected(worker)
        message = call_to_pb(call, self._clock.now())
        try:
            answer = await self._asked(peer, worker, message)
        except FeatureUnavailable:  # a worker of 0.1 may be answering
            leave_out_later_fields(message)
            answer = await self._asked(peer, worker, message)
        if self._gate is not None and self._gate.is_shut:  # before it is billed: the request may end here
            await self._gate.opened()
        if len(answer.embeddings) != len(call.inputs):
            raise WorkerLost(f"{worker.worker_id} answered {len(answer.embeddings)} of {len(call.inputs)} inputs")
        return [embedding.values for embedding in answer.embeddings]

    async def _asked(
        self, peer: grpc.aio.Channel, worker: WorkerRef, message: embed_pb2.EmbedRequest
    ) -> embed_pb2.EmbedResponse:
        async with translate_errors(peer=worker.worker_id):
            answer: embed_pb2.EmbedResponse = await embed_pb2_grpc.EmbedServiceStub(peer).Embed(message)
            return answer

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()

    async def _connected(self, worker: WorkerRef) -> grpc.aio.Channel:
        peer = self._channels.get(worker.address, worker.incarnation)
        is_ready = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._connect_timeout_s):
                is_ready = await _is_connected(peer)
        if not is_ready:
            self._channels.drop(worker.address, worker.incarnation)
            raise Unreachable(f"{worker.worker_id} cannot be reached")
        return peer


async def _is_connected(peer: grpc.aio.Channel) -> bool:
    """Wait until it is; a refused connection is an answer, too, and need not be tried for the whole time."""
    refused = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)
    while (state := peer.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in refused:
            return False
        await peer.wait_for_state_change(state)
    return True
