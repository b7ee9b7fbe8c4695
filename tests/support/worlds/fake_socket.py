"""A connection of a socket over a transport that keeps what is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from stratos.common.errors import StratosError
from stratos_gateway.sockets.connection import ConnectionBounds, SocketConnection, TakePlace


class FakeTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written, self.ends = b"", list[str]()

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.ends)

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")


class FakeFlow:
    """Full, once it is told so."""

    def __init__(self) -> None:
        self.write_paused = False
        self.is_reading = True

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def anywhere(end: Callable[[StratosError], None]) -> Callable[[], None]:
    """A place that is always there."""
    return lambda: None


def connected(take_place: TakePlace = anywhere, **bounds: Any) -> tuple[SocketConnection, FakeTransport, FakeFlow]:
    """A connection with small bounds."""
    transport, flow = FakeTransport(), FakeFlow()
    given = ConnectionBounds(**{"max_bytes": 1000, "message_s": 30.0, "write_s": 0.01, **bounds})
    return SocketConnection(cast("asyncio.Transport", transport), flow, given, take_place), transport, flow
