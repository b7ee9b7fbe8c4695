"""Gives other gateways, and ``stratos admin``, a copy of what this one knows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from stratos.api.gateway.v1 import snapshot_pb2, snapshot_pb2_grpc
from stratos.common.errors import DependencyDown
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.snapshot_copy import copy_of, dump_copy

_PIECE_BYTES = 1 << 20
_BUILD_S = 1.0
"""A copy that is not older is given again: a fleet that starts asks for it at one time."""


class SnapshotCopies:
    """The text of a follower's snapshot, made when it is asked for.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower
        self._lock = asyncio.Lock()
        self._made_s = float("-inf")
        self._text = b""

    async def text(self) -> bytes:
        """A copy of now, or of a second ago.

        Raises:
            DependencyDown: nothing was loaded yet.
        """
        async with self._lock:
            if time.monotonic() - self._made_s > _BUILD_S:
                copy = copy_of(self._follower.snapshot, self._follower.age_s, time.time())
                if copy is None:
                    raise DependencyDown("this gateway has not loaded tenants and keys yet")
                self._text = await asyncio.to_thread(dump_copy, copy)
                self._made_s = time.monotonic()
            return self._text


class SnapshotServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Raises ``StratosError``; the server's interceptor puts it on the wire.

    Args:
        text: gives the copy.
    """

    def __init__(self, text: Callable[[], Awaitable[bytes]]) -> None:
        self._text = text

    async def FetchSnapshot(
        self, request: snapshot_pb2.FetchSnapshotRequest, context: Any
    ) -> AsyncIterator[snapshot_pb2.FetchSnapshotResponse]:
        """The copy in pieces."""
        text = await self._text()
        for begin in range(0, len(text), _PIECE_BYTES):
            yield snapshot_pb2.FetchSnapshotResponse(content=text[begin : begin + _PIECE_BYTES])
