"""gRPC edge of ``KvSourceService``, served by both roles: Fetch streams become ``SourceLeg`` runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc.aio

from stratos.api.kv.v1 import source_pb2, source_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, Draining, StratosError, WorkerLost
from stratos.worker.drain_gate import DrainGate
from stratos.worker.handoff.codec import request_from_pb, response_to_pb
from stratos.worker.handoff.pairing import check_pairing, choose_transport
from stratos.worker.handoff.records import Intent, ReceiverMessage, Refused, SourceMessage
from stratos.worker.handoff.source_leg import SourceLeg, SourceParts

MAX_HASHES = 65536
HASH_BYTES = 32

logger = logging.getLogger(__name__)


class GrpcSourceStream:
    """A Fetch stream on the source's side."""

    def __init__(self, context: Any, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._writing = asyncio.Lock()

    async def send(self, message: SourceMessage) -> None:
        """Write one message."""
        async with self._writing:
            try:
                await self._context.write(response_to_pb(message))
            except (grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                raise WorkerLost("the receiver left") from error

    async def receive(self) -> ReceiverMessage | None:
        """Read one message; ``None`` at the end."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else request_from_pb(message, self._clock.now())


class SourceServicer(source_pb2_grpc.KvSourceServiceServicer):
    """Serves KV of this worker. ``parts`` is called per request: the engine exists only after ``open``."""

    def __init__(self, parts: Callable[[], SourceParts], gate: DrainGate) -> None:
        self._parts = parts
        self._gate = gate

    async def Fetch(self, request_iterator: Any, context: Any) -> None:
        """One hand-off; what prevents it is said in the stream."""
        parts = self._parts()
        stream = GrpcSourceStream(context, parts.clock)
        with self._gate.source_leg():
            outcome, request_id = "lost", "?"
            try:
                intent, transport = self._check(await stream.receive(), parts)
                request_id = intent.request_id
                outcome = await SourceLeg(parts, stream, intent, transport).run()
            except StratosError as error:
                outcome = error.code
                logger.info("hand-off of request %.200r ended as source: %s", request_id, error.message)
                with suppress(WorkerLost):
                    await stream.send(Refused(error))
            finally:
                parts.metrics.handoffs.labels("source", outcome).inc()

    def _check(self, intent: ReceiverMessage | None, parts: SourceParts) -> tuple[Intent, str]:
        if not isinstance(intent, Intent):
            raise BadRequest("the first message of a Fetch stream must be Intent")
        if self._gate.is_draining and intent.compute:
            raise Draining("this worker is leaving and computes nothing new")
        if intent.leg in parts.jobs or not intent.leg:
            raise BadRequest("the leg must be new", param="leg")
        info = parts.engine.info
        if (
            not intent.token_ids
            or max(intent.token_ids) >= info.vocab_size
            or len(intent.token_ids) > info.max_model_len
        ):
            raise BadRequest("token_ids must be a prompt of this model", param="token_ids")
        check_pairing(info.identity, intent.identity, info.geometry, intent.geometry)
        transport = choose_transport(
            parts.transports.names, intent.transports, parts.me().address, intent.receiver.address
        )
        return intent, transport

    async def Invalidate(self, request: source_pb2.InvalidateRequest, context: Any) -> source_pb2.InvalidateResponse:
        """Forget blocks whose content cannot be trusted."""
        hashes = list(request.block_hashes)
        if len(hashes) > MAX_HASHES or any(len(name) != HASH_BYTES for name in hashes):
            raise BadRequest(
                f"block_hashes must be at most {MAX_HASHES} names of {HASH_BYTES} bytes", param="block_hashes"
            )
        return source_pb2.InvalidateResponse(num_forgotten=await self._parts().engine.forget_blocks(hashes))
