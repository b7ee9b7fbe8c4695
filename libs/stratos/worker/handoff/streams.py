"""Both sides of a Fetch stream over gRPC: messages as records, failures as ``StratosError``."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from stratos.common.clock import Clock
from stratos.common.errors import WorkerLost
from stratos.rpc.clients.channel import translate_errors
from stratos.worker.handoff.codec import request_from_pb, request_to_pb, response_from_pb, response_to_pb
from stratos.worker.handoff.records import ReceiverMessage, SourceMessage


class FetchStream:
    """A Fetch stream on the receiver's side; every failure is a ``StratosError``."""

    def __init__(self, call: Any, peer: str, clock: Clock) -> None:
        self._call = call
        self._peer = peer
        self._clock = clock

    async def send(self, message: ReceiverMessage) -> None:
        async with translate_errors(peer=self._peer):
            try:
                await self._call.write(request_to_pb(message, self._clock.now()))
            except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                raise WorkerLost(f"{self._peer} ended the stream") from error

    async def receive(self) -> SourceMessage | None:
        """Read one message; ``None`` at the end."""
        async with translate_errors(peer=self._peer):
            message = await self._call.read()
        return None if message is grpc.aio.EOF else response_from_pb(message)

    async def finish(self) -> None:
        """Say that nothing will follow."""
        async with translate_errors(peer=self._peer):
            await self._call.done_writing()

    def cancel(self) -> None:
        self._call.cancel()


class SourceStream:
    """A Fetch stream on the source's side."""

    def __init__(self, context: Any, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._writing = asyncio.Lock()

    async def send(self, message: SourceMessage) -> None:
        async with self._writing:
            try:
                await self._context.write(response_to_pb(message))
            except (grpc.aio.InternalError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                raise WorkerLost("the receiver left") from error

    async def receive(self) -> ReceiverMessage | None:
        """Read one message; ``None`` at the end."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else request_from_pb(message, self._clock.now())
