"""What every sender has in common: the cache of pairs and the checks before a payload is moved."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from stratos.common.errors import WorkerLost
from stratos.core.device.payload import DevicePayload, Payload
from stratos.kv_transfer.transfer import FrameHeader, PairSender, Sender, TransportOffer


def checked_payload(offer: TransportOffer, header: FrameHeader, payload: Payload | bytes | bytearray) -> memoryview:
    """The payload as bytes of the host; raises ``ValueError`` when it does not fit the offer or its header."""
    data = fitting_payload(offer, header, payload)
    return data if isinstance(data, memoryview) else data.to_host()


def fitting_payload(offer: TransportOffer, header: FrameHeader, payload: Payload | bytes | bytearray) -> Payload:
    """The payload where it lies; raises ``ValueError`` when it does not fit the offer or its header."""
    data = payload if isinstance(payload, DevicePayload) else memoryview(payload).cast("B")
    if not data.nbytes:
        raise ValueError("a frame must have a payload")
    if not 0 <= header.slot < offer.num_slots:
        raise ValueError(f"there is no slot {header.slot}: the pair has {offer.num_slots}")
    if data.nbytes > offer.slot_bytes:
        raise ValueError(f"{data.nbytes} bytes do not fit a slot of {offer.slot_bytes}; plan smaller frames")
    if data.nbytes != header.num_bytes:
        raise ValueError(f"the payload has {data.nbytes} bytes, its header says {header.num_bytes}")
    return data


class _SendingPair(Protocol):
    offer: TransportOffer

    async def close(self) -> None: ...


PairT = TypeVar("PairT", bound=_SendingPair)


def _base_of(pair: str) -> str:
    """The pair's name without its generation."""
    return pair.rpartition("#")[0]


class PairCache(ABC, Generic[PairT]):
    """Connects each pair once; beyond ``max_pairs`` the least recently connected one is closed."""

    transport: str

    def __init__(self, max_pairs: int = 64) -> None:
        if max_pairs < 1:
            raise ValueError("max_pairs must be positive")
        self._max_pairs = max_pairs
        self._pairs: dict[str, PairT] = {}
        """Least recently connected first."""
        self._connecting: dict[str, asyncio.Task[PairT]] = {}
        self._closed = False

    @abstractmethod
    async def _connect(self, offer: TransportOffer) -> PairT:
        """Attach to the receiver. Raises ``WorkerLost`` when it is not there."""

    async def connect(self, offer: TransportOffer) -> PairT:
        """As ``Sender.connect``."""
        _check_offer(offer, self.transport)
        known = self._pairs.get(offer.pair)
        if known is not None:
            if known.offer != offer:
                raise ValueError(f"the pair {offer.pair} was offered before with another address or size")
            self._pairs[offer.pair] = self._pairs.pop(offer.pair)
            return known
        # A ring can be attached to only once: callers that come later, also after one that gave up, share the attempt.
        task = self._connecting.get(offer.pair)
        if task is None:
            task = asyncio.create_task(self._attach(offer), name=f"kv-connect {offer.pair}")
            task.add_done_callback(_mark_seen)  # all who waited may have given up
            self._connecting[offer.pair] = task
        return await asyncio.shield(task)

    def find(self, pair: str) -> PairT | None:
        """A pair that is connected."""
        return self._pairs.get(pair)

    async def close_pair(self, pair: str) -> None:
        known = self._pairs.pop(pair, None)
        if known is not None:
            await known.close()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for pair in list(self._pairs):
            await self.close_pair(pair)

    async def _attach(self, offer: TransportOffer) -> PairT:
        try:
            if self._closed:
                raise WorkerLost("this sender is closed")
            made = await self._connect(offer)
        finally:
            del self._connecting[offer.pair]
        self._pairs[offer.pair] = made
        stale = [pair for pair in self._pairs if pair != offer.pair and _base_of(pair) == _base_of(offer.pair)]
        stale += [pair for pair in self._pairs if pair not in stale][: -self._max_pairs]
        for pair in stale:
            await self.close_pair(pair)
        return made


def _mark_seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class CachingSender(PairCache[PairSender], Sender):
    """``Sender`` whose pairs are cached."""


def _check_offer(offer: TransportOffer, transport: str) -> None:
    if offer.transport != transport:
        raise ValueError(f"an offer of transport {offer.transport!r} cannot be used by {transport!r}")
    if offer.slot_bytes < 1 or offer.num_slots < 1 or not offer.pair or not offer.address:
        raise ValueError(f"malformed offer: {offer}")
