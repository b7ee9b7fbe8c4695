"""Transport within one process: the reference that the others are compared with, and the one of unit tests.

Both ends are given the same ``InprocHub``; an address names a ring in it.
"""

from __future__ import annotations

from stratos.common.errors import WorkerLost
from stratos.core.device.payload import Payload
from stratos.kv_transfer.fitting import checked_payload
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import FrameHeader, PairSender, Ring, TransportEnds, TransportOffer


class InprocHub:
    """Rings by address."""

    def __init__(self) -> None:
        self.rings: dict[str, memoryview] = {}


class _InprocRing(Ring):
    def __init__(self, hub: InprocHub, pair: str, config: StagingConfig) -> None:
        self.address = pair
        self._hub = hub
        self._slot_bytes = config.slot_bytes
        self._memory = memoryview(bytearray(config.slot_bytes * config.slots_per_pair))
        hub.rings[pair] = self._memory

    def payload(self, slot: int, num_bytes: int) -> memoryview:
        return self._memory[slot * self._slot_bytes :][:num_bytes].toreadonly()

    def close(self) -> None:
        self._hub.rings.pop(self.address, None)


class _InprocPair(PairSender):
    def __init__(self, offer: TransportOffer, hub: InprocHub) -> None:
        self.offer = offer
        self._hub = hub
        self._closed = False

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        data = checked_payload(self.offer, header, payload)
        memory = self._hub.rings.get(self.offer.address)
        if memory is None or self._closed:
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")
        begin = header.slot * self.offer.slot_bytes
        memory[begin : begin + data.nbytes] = data

    async def close(self) -> None:
        self._closed = True


def inproc_ends(config: StagingConfig, hub: InprocHub) -> TransportEnds:
    """Ends that reach those which share the hub."""

    async def open_ring(pair: str) -> Ring:
        return _InprocRing(hub, pair, config)

    async def connect(offer: TransportOffer) -> PairSender:
        memory = hub.rings.get(offer.address)
        if memory is None:
            raise WorkerLost(f"no receiver offers the KV transfer pair {offer.pair}")
        if memory.nbytes != offer.slot_bytes * offer.num_slots:
            raise ValueError(f"the ring of {offer.pair} has {memory.nbytes} bytes, not what its offer says")
        return _InprocPair(offer, hub)

    return TransportEnds(open_ring=open_ring, connect=connect)
