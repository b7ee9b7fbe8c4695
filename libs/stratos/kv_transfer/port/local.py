"""A data port over the pages of an engine in this process.

Copies of host memory let the interpreter lock go, since the engine's steps run in this process as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from stratos.common.background import BackgroundTasks
from stratos.common.errors import Internal, WorkerLost
from stratos.core.device.payload import DevicePayload, Payload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.port.base import DataPort, FrameArrived, OpenedRing, PackedFrame, Pages, RingBroken
from stratos.kv_transfer.receiver import Frame, Ring, Rings
from stratos.kv_transfer.transfer import FrameHeader, Sender, TransportOffer

EndT = TypeVar("EndT", Rings, Sender)
COPY_IN_THREAD_BYTES = 64 * 1024
"""Payloads from this size are copied and hashed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTransport:
    """How to make both ends of one transport."""

    rings: Callable[[], Rings]
    sender: Callable[[], Sender]
    is_on_device: bool = False
    """Payloads stay in a device's memory, if the pages are in one."""


class LocalPort(DataPort):
    """Makes each end of a transport on first use, in a thread: one may import torch first.

    Args:
        transports: by name.
        pages: of the engine.
        faults: why some of the transports do not work here.
    """

    def __init__(
        self, transports: Mapping[str, PortTransport], pages: Pages, faults: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.faults = faults or {}
        self._transports, self._pages = dict(transports), pages
        self._makers: dict[str, Rings] = {}
        self._senders: dict[str, Sender] = {}
        self._making = asyncio.Lock()
        self._opening: set[str] = set()
        self._rings: dict[str, tuple[Rings, Ring]] = {}
        """By pair."""
        self._legs: set[str] = set()
        """That pack."""
        self._packed: dict[str, Payload] = {}
        self._ending = BackgroundTasks()

    async def prepare(self, transport: str) -> None:
        known = self._transport(transport)
        await self._made(self._makers, transport, known.rings)
        await self._made(self._senders, transport, known.sender)

    # -- receiving ---------------------------------------------------------------------------------

    async def open_ring(self, transport: str, pair: str) -> OpenedRing:
        self._opening.add(pair)
        try:
            maker = await self._made(self._makers, transport, self._transport(transport).rings)
            ring = await maker.make(pair)
        except BaseException:
            self._opening.discard(pair)
            raise
        if pair not in self._opening:
            self._close_ring(maker, ring)
            raise WorkerLost(f"the KV transfer pair {pair} was ended")
        self._opening.discard(pair)
        self._rings[pair] = maker, ring
        ring.start(self._on_arrived, self._on_broken)
        return OpenedRing(address=ring.address, completes_on_sent=ring.completes_on_sent)

    def post(self, pair: str, header: FrameHeader) -> None:
        if pair not in self._rings:
            return  # it has ended, and the worker was told
        try:
            self._rings[pair][1].post(Frame(header))
        except Internal as error:
            self._on_broken(pair, error.message)

    async def receive(self, pair: str, key: RequestKey, header: FrameHeader) -> int | None:
        if pair not in self._rings:
            return None
        slot = self._rings[pair][1].payload(header.slot, header.num_bytes)
        if isinstance(slot, DevicePayload):
            assert self._pages.device_pages is not None, "such a transport was not offered"
            return await self._pages.device_pages.unpack(key, header.kv_range, slot)
        assert isinstance(slot, memoryview)
        # The source could write to the slot between a check and a copy: what is checked is what is written.
        in_thread = slot.nbytes >= COPY_IN_THREAD_BYTES
        private, check = await asyncio.to_thread(_copy, slot) if in_thread else _copy(slot)
        if check == header.checksum:
            await self._pages.scatter(key, header.kv_range, private)
        return check

    def end_ring(self, pair: str) -> None:
        self._opening.discard(pair)
        if (found := self._rings.pop(pair, None)) is not None:
            self._close_ring(*found)

    def _close_ring(self, maker: Rings, ring: Ring) -> None:
        maker.forget(ring)
        closing = ring.close()
        if closing is not None and not closing.done():
            self._ending.own(closing)

    def _on_arrived(self, pair: str, frame: Frame) -> None:
        if pair in self._rings:
            self._publish(FrameArrived(pair=pair, leg=frame.header.leg, seq=frame.header.seq))

    def _on_broken(self, pair: str, why: str) -> None:
        if pair in self._rings:
            self.end_ring(pair)
            self._publish(RingBroken(pair=pair, why=why))

    # -- sending -----------------------------------------------------------------------------------

    def sender(self, transport: str) -> Sender:
        """The sending end of a transport."""
        if transport not in self._senders:
            self._senders[transport] = self._transport(transport).sender()
        return self._senders[transport]

    async def connect(self, offer: TransportOffer) -> bool:
        sender = await self._made(self._senders, offer.transport, self._transport(offer.transport).sender)
        return (await sender.connect(offer)).is_ordered

    async def pack(self, transport: str, leg: str, kv_range: KvRange) -> PackedFrame:
        self._legs.add(leg)
        payload, check = await self._read(transport, leg, kv_range)
        if leg in self._legs:
            self._packed[leg] = payload
        return PackedFrame(num_bytes=payload.nbytes, checksum=check)

    async def send(self, transport: str, pair: str, header: FrameHeader) -> None:
        payload, sender = self._packed.pop(header.leg, None), self._senders.get(transport)
        if sender is None or (found := sender.find(pair)) is None:
            raise WorkerLost(f"the KV transfer pair {pair} has ended")  # at the port's end nothing is packed either
        if payload is None:
            raise ValueError(f"leg {header.leg} has packed nothing")
        await found.send(header, payload)

    def drop(self, leg: str) -> None:
        self._legs.discard(leg)
        self._packed.pop(leg, None)

    def end_pair(self, transport: str, pair: str) -> None:
        if transport in self._senders:
            self._ending.spawn(self._senders[transport].close_pair(pair), name=f"kv-end {pair}")

    async def _read(self, transport: str, leg: str, kv_range: KvRange) -> tuple[Payload, int]:
        if self._transport(transport).is_on_device and self._pages.device_pages is not None:
            return await self._pages.device_pages.pack(leg, kv_range)
        payload = await self._pages.gather(leg, kv_range)
        return payload, await asyncio.to_thread(checksum, payload)

    # -- life --------------------------------------------------------------------------------------

    async def close(self) -> None:
        for pair in [*self._opening, *self._rings]:
            self.end_ring(pair)
        for sender in self._senders.values():
            await sender.close()
        await self._ending.close()
        for maker in self._makers.values():
            await maker.close()
        self._packed.clear()

    async def _made(self, known: dict[str, EndT], transport: str, make: Callable[[], EndT]) -> EndT:
        async with self._making:
            if transport not in known:
                known[transport] = await asyncio.to_thread(make)
            return known[transport]

    def _transport(self, name: str) -> PortTransport:
        if name not in self._transports:
            raise ValueError(f"this process does not speak the KV transport {name!r}")
        return self._transports[name]


def _copy(slot: memoryview) -> tuple[memoryview, int]:
    """A private copy and its checksum."""
    private: Any = np.array(np.frombuffer(slot, dtype=np.uint8))
    return private.data.toreadonly(), checksum(private.data)
