"""A data port over the pages of an engine in this process.

Copies of host memory let the interpreter lock go, since the engine's steps run in this process as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratos.common.background import BackgroundTasks
from stratos.common.errors import Internal, WorkerLost
from stratos.core.device.payload import DevicePayload, Payload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.port.base import DataPort, GatheredFrame, OpenedRing, Pages
from stratos.kv_transfer.transfer import (
    FrameHeader,
    PairSender,
    PortEvent,
    Ring,
    RingBroken,
    TransportEnds,
    TransportOffer,
)

COPY_IN_THREAD_BYTES = 64 * 1024
"""Payloads from this size are copied and hashed in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTransport:
    """How to make both ends of one transport."""

    make: Callable[[], TransportEnds]
    is_on_device: bool = False
    """Payloads stay in a device's memory, if the pages are in one."""


class LocalPort(DataPort):
    """Makes the ends of a transport on first use, in a thread: one may import torch first.

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
        self._ends: dict[str, TransportEnds] = {}
        self._making = asyncio.Lock()
        self._opening: set[str] = set()
        self._rings: dict[str, Ring] = {}
        """By pair."""
        self._connections: dict[tuple[str, str], asyncio.Task[PairSender]] = {}
        """By transport and pair; also those that are being made."""
        self._legs: set[str] = set()
        """Legs that gather."""
        self._gathered: dict[str, Payload] = {}
        """By leg."""
        self._ending = BackgroundTasks()
        self._is_closed = False

    async def prepare(self, transport: str) -> None:
        await self._ends_of(transport)

    # -- receiving ---------------------------------------------------------------------------------

    async def open_ring(self, transport: str, pair: str) -> OpenedRing:
        self._opening.add(pair)
        try:
            ring = await (await self._ends_of(transport)).open_ring(pair)
        except BaseException:
            self._opening.discard(pair)
            raise
        if pair not in self._opening:
            self._close_ring(ring)
            raise WorkerLost(f"the KV transfer pair {pair} was ended")
        self._opening.discard(pair)
        self._rings[pair] = ring
        ring.start(self._on_event)
        return OpenedRing(address=ring.address, completes_on_sent=ring.completes_on_sent)

    def announce_frame(self, pair: str, header: FrameHeader) -> None:
        if pair not in self._rings:
            return  # it has ended, and an event went to the worker
        try:
            self._rings[pair].announce_frame(header)
        except Internal as error:
            self._on_event(RingBroken(pair=pair, why=error.message))

    async def receive(self, pair: str, key: RequestKey, header: FrameHeader) -> int | None:
        if pair not in self._rings:
            return None
        slot = self._rings[pair].payload(header.slot, header.num_bytes)
        if isinstance(slot, DevicePayload):
            assert self._pages.has_device_pages, "such a transport was not offered"
            return await self._pages.scatter(key, header.kv_range, slot)
        in_thread = slot.nbytes >= COPY_IN_THREAD_BYTES
        private, check = await asyncio.to_thread(_copy, slot) if in_thread else _copy(slot)
        if check == header.checksum:
            await self._pages.scatter(key, header.kv_range, private)
        return check

    def end_ring(self, pair: str) -> None:
        self._opening.discard(pair)
        if (found := self._rings.pop(pair, None)) is not None:
            self._close_ring(found)

    def _close_ring(self, ring: Ring) -> None:
        closing = ring.close()
        if closing is not None and not closing.done():
            self._ending.own(closing)

    def _on_event(self, event: PortEvent) -> None:
        if event.pair not in self._rings:
            return
        if isinstance(event, RingBroken):
            self.end_ring(event.pair)
        self._publish(event)

    # -- sending -----------------------------------------------------------------------------------

    async def connect(self, offer: TransportOffer) -> bool:
        name = offer.transport, offer.pair
        if name not in self._connections:
            # A task: a ring can be attached to only once, so a caller that gives up must not leave half an attempt.
            task = asyncio.create_task(self._connect(offer), name=f"kv-connect {offer.pair}")
            task.add_done_callback(lambda done: self._connected(name, done))
            self._connections[name] = task
        return (await asyncio.shield(self._connections[name])).is_ordered

    async def gather(self, transport: str, leg: str, kv_range: KvRange) -> GatheredFrame:
        self._legs.add(leg)
        on_device = self._transport(transport).is_on_device and self._pages.has_device_pages
        payload, check = await self._pages.gather(leg, kv_range, on_device=on_device)
        if check is None:
            assert isinstance(payload, memoryview), "a device adds it up"
            check = await asyncio.to_thread(checksum, payload)
        if leg in self._legs:
            self._gathered[leg] = payload
        return GatheredFrame(num_bytes=payload.nbytes, checksum=check)

    async def send(self, transport: str, pair: str, header: FrameHeader) -> None:
        payload, task = self._gathered.pop(header.leg, None), self._connections.get((transport, pair))
        if task is None or not task.done():
            raise WorkerLost(f"the KV transfer pair {pair} has ended")  # at the port's end nothing is gathered either
        if payload is None:
            raise ValueError(f"leg {header.leg} has gathered nothing")
        await task.result().send(header, payload)

    def drop_leg(self, leg: str) -> None:
        self._legs.discard(leg)
        self._gathered.pop(leg, None)

    def end_pair(self, transport: str, pair: str) -> None:
        task = self._connections.pop((transport, pair), None)
        if task is not None:
            self._ending.spawn(_close_pair(task), name=f"kv-end {pair}")

    async def _connect(self, offer: TransportOffer) -> PairSender:
        ends = await self._ends_of(offer.transport)
        if self._is_closed:
            raise WorkerLost("this data port is closed")
        return await ends.connect(offer)

    def _connected(self, name: tuple[str, str], task: asyncio.Task[PairSender]) -> None:
        is_failed = task.cancelled() or task.exception() is not None
        if is_failed and self._connections.get(name) is task:
            del self._connections[name]

    # -- life --------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._is_closed = True
        for pair in [*self._opening, *self._rings]:
            self.end_ring(pair)
        for transport, pair in list(self._connections):
            self.end_pair(transport, pair)
        await self._ending.close()
        for ends in self._ends.values():
            await ends.close()
        self._gathered.clear()

    async def _ends_of(self, transport: str) -> TransportEnds:
        async with self._making:
            if transport not in self._ends:
                self._ends[transport] = await asyncio.to_thread(self._transport(transport).make)
            return self._ends[transport]

    def _transport(self, name: str) -> PortTransport:
        if name not in self._transports:
            raise ValueError(f"this process does not speak the KV transport {name!r}")
        return self._transports[name]


async def _close_pair(task: asyncio.Task[PairSender]) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await task.result().close()


def _copy(slot: memoryview) -> tuple[memoryview, int]:
    """A private copy and its checksum."""
    private: Any = np.array(np.frombuffer(slot, dtype=np.uint8))
    return private.data.toreadonly(), checksum(private.data)
