"""The data port of an engine's process, as its worker has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.port.base import DataPort, GatheredFrame, OpenedRing
from stratos.kv_transfer.transfer import FrameHeader, RingBroken, TransportOffer
from stratos.worker.engine_client.wire import PORT, Happened


class RemotePort(DataPort):
    """Calls over the channel of the engine's process, which closes the port at its end.

    Args:
        call: a method by name, for its result.
        post: the same, without waiting for it.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], post: Callable[..., None]) -> None:
        super().__init__()
        self._call, self._post = call, post

    def happened(self, message: Happened) -> None:
        """An event has come."""
        event = message.arrived or message.broken
        assert event is not None, "exactly one is set"
        self._publish(event)

    def ended(self, why: str) -> None:
        """The engine's process is gone, and all pairs with it."""
        self._publish(RingBroken(pair="", why=why))

    async def prepare(self, transport: str) -> None:
        await self._call(f"{PORT}prepare", transport)

    async def open_ring(self, transport: str, pair: str) -> OpenedRing:
        opened: OpenedRing = await self._call(f"{PORT}open_ring", transport, pair)
        return opened

    def announce_frame(self, pair: str, header: FrameHeader) -> None:
        self._post(f"{PORT}announce_frame", pair, header)

    async def receive(self, pair: str, key: RequestKey, header: FrameHeader) -> int | None:
        check: int | None = await self._call(f"{PORT}receive", pair, key, header)
        return check

    def end_ring(self, pair: str) -> None:
        self._post(f"{PORT}end_ring", pair)

    async def connect(self, offer: TransportOffer) -> bool:
        return bool(await self._call(f"{PORT}connect", offer))

    async def gather(self, transport: str, leg: str, kv_range: KvRange) -> GatheredFrame:
        gathered: GatheredFrame = await self._call(f"{PORT}gather", transport, leg, kv_range)
        return gathered

    async def send(self, transport: str, pair: str, header: FrameHeader) -> None:
        await self._call(f"{PORT}send", transport, pair, header)

    def drop_leg(self, leg: str) -> None:
        self._post(f"{PORT}drop_leg", leg)

    def end_pair(self, transport: str, pair: str) -> None:
        self._post(f"{PORT}end_pair", transport, pair)

    async def close(self) -> None:
        """The process closes it at its end."""
