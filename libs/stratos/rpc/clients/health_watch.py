"""Health of a peer as the peer tells it: the first answer to a ``Watch``, then each change.

A call of gRPC for each look costs a process that does nothing more than all else that it does.  A stream that is open
says nothing of a peer that stands still: callers ask the peer something besides.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratos.common.background import happens


class HealthWatch:
    """Belongs to the event loop.

    Args:
        channel: to the peer.
        service: whose health it is.
    """

    def __init__(self, channel: grpc.aio.Channel, service: str) -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._request = health_pb2.HealthCheckRequest(service=service)
        self._is_serving = False
        self._reader: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()

    async def is_serving(self, *, timeout_s: float) -> bool:
        """Whether the service is SERVING; waits for the first answer alone, for so long at most."""
        if self._reader is None or self._reader.done():
            self._heard.clear()
            self._reader = asyncio.create_task(self._read(self._stub.Watch(self._request)), name="watch health")
        if not await happens(self._heard, timeout_s):
            self._reader.cancel()
        return self._is_serving

    async def close(self) -> None:
        """Ask no more."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, call: Any) -> None:
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                self._is_serving = answer.status == health_pb2.HealthCheckResponse.SERVING
                self._heard.set()
                if not self._is_serving:  # a peer that leaves waits for its open streams; the next look asks again
                    break
        except grpc.aio.AioRpcError:
            pass  # the peer is away; the next look asks again
        finally:
            call.cancel()
            self._is_serving = False
            self._heard.set()
