"""A decode worker's side of one session, as far as gateways can tell."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import decode_pb2
from stratos.core.requests.records import RequestKey


class FakeOutputSession:
    """Counts Submits, and says messages one after another.

    Args:
        context: of the call.
        has_columns: both sides know columns.
    """

    def __init__(self, context: Any, *, has_columns: bool) -> None:
        self.context = context
        self.has_columns = has_columns
        self.num_submits = 0
        self.num_in_columns = 0
        """Tokens that were said in columns."""
        self.submit_of: dict[RequestKey, int] = {}
        self._write_lock = asyncio.Lock()

    def count_submit(self, message: decode_pb2.SessionRequest) -> None:
        self.num_submits += 1
        assert message.submit_number == self.num_submits
        if self.has_columns:
            self.submit_of[RequestKey(message.submit.request_id, message.submit.attempt)] = message.submit_number

    async def write(self, message: decode_pb2.SessionResponse) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.UsageError):
            async with self._write_lock:  # grpc takes one write at a time
                await self.context.write(message)
