"""Rings that are in the process of a data port; the worker has their slot ledger (``RingReceiver``)."""

from __future__ import annotations

from stratos.kv_transfer.port.base import DataPort, FrameArrived, PortEvent, RingBroken
from stratos.kv_transfer.receiver import Frame, OnArrived, OnBroken, Ring, Rings
from stratos.kv_transfer.transfer import StagedPayload


class _PortRing(Ring):
    def __init__(self, port: DataPort, pair: str) -> None:
        self._port, self._pair = port, pair
        self._frames: dict[tuple[str, int], Frame] = {}
        """Posted, and not arrived."""
        self._on_arrived: OnArrived | None = None
        self._on_broken: OnBroken | None = None
        self._failure: str | None = None

    def start(self, on_arrived: OnArrived, on_broken: OnBroken) -> None:
        self._on_arrived, self._on_broken = on_arrived, on_broken
        if self._failure is not None:
            on_broken(self._pair, self._failure)

    def payload(self, slot: int, num_bytes: int) -> StagedPayload:
        return StagedPayload(pair=self._pair, slot=slot, nbytes=num_bytes)

    def post(self, frame: Frame) -> None:
        if not self.completes_on_sent:
            self._frames[frame.header.leg, frame.header.seq] = frame
            self._port.post(self._pair, frame.header)

    def close(self) -> None:
        self._port.end_ring(self._pair)

    def arrived(self, event: FrameArrived) -> None:
        frame = self._frames.pop((event.leg, event.seq), None)
        if frame is not None and self._on_arrived is not None:
            self._on_arrived(self._pair, frame)

    def broken(self, why: str) -> None:
        if self._on_broken is None:
            self._failure = why  # it came together with the answer to the call that opened the ring
        else:
            self._on_broken(self._pair, why)


class PortRings(Rings):
    """Opens rings of ``transport`` at ``port``."""

    def __init__(self, transport: str, port: DataPort) -> None:
        self._transport, self._port = transport, port
        self._rings: dict[str, _PortRing] = {}
        port.subscribe(self._on_event)

    async def make(self, pair: str) -> Ring:
        ring = self._rings[pair] = _PortRing(self._port, pair)
        try:
            opened = await self._port.open_ring(self._transport, pair)
        except BaseException:  # the caller gave up, or it failed: either way no slots may stay
            del self._rings[pair]
            self._port.end_ring(pair)
            raise
        ring.address, ring.completes_on_sent = opened.address, opened.completes_on_sent
        return ring

    def forget(self, ring: Ring) -> None:
        self._rings = {pair: known for pair, known in self._rings.items() if known is not ring}

    def _on_event(self, event: PortEvent) -> None:
        if isinstance(event, RingBroken) and not event.pair:
            for ring in list(self._rings.values()):
                ring.broken(event.why)
        elif (found := self._rings.get(event.pair)) is None:
            return
        elif isinstance(event, FrameArrived):
            found.arrived(event)
        else:
            found.broken(event.why)
