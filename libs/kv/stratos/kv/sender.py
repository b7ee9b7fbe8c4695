"""What every sender has in common: the cache of pairs and the checks before a payload is moved."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from stratos.common.errors import WorkerLost
from stratos.kv.transfer import FrameHeader, PairSender, Sender, TransportOffer


def checked_payload(offer: TransportOffer, header: FrameHeader, payload: memoryview | bytes | bytearray) -> memoryview:
    """The payload as bytes; raises ``ValueError`` when it does not fit the offer or its header."""
    data = memoryview(payload).cast("B")
    if not 0 <= header.slot < offer.num_slots:
        raise ValueError(f"there is no slot {header.slot}: the pair has {offer.num_slots}")
    if data.nbytes > offer.slot_bytes:
        raise ValueError(f"{data.nbytes} bytes do not fit a slot of {offer.slot_bytes}; plan smaller frames")
    if data.nbytes != header.num_bytes:
        raise ValueError(f"the payload has {data.nbytes} bytes, its header says {header.num_bytes}")
    return data


def _base_of(pair: str) -> str:
    """The pair's name without its generation."""
    return pair.rpartition("#")[0]


class CachingSender(Sender):
    """``Sender`` that connects each pair once; beyond ``max_pairs`` the least recently connected one is closed."""

    def __init__(self, max_pairs: int = 64) -> None:
        if max_pairs < 1:
            raise ValueError("max_pairs must be positive")
        self._max_pairs = max_pairs
        self._pairs: dict[str, PairSender] = {}
        """Least recently connected first."""
        self._connecting: dict[str, asyncio.Lock] = {}
        self._closed = False

    @abstractmethod
    async def _connect(self, offer: TransportOffer) -> PairSender:
        """Attach to the receiver. Raises ``WorkerLost`` when it is not there."""

    async def connect(self, offer: TransportOffer) -> PairSender:
        """See ``Sender.connect``."""
        _check_offer(offer, self.transport)
        base = _base_of(offer.pair)
        # One lock per peer, so that a slow peer delays nobody else and a pair is attached to only once.
        async with self._connecting.setdefault(base, asyncio.Lock()):
            known = self._pairs.get(offer.pair)
            if known is not None:
                if known.offer != offer:
                    raise ValueError(f"the pair {offer.pair} was offered before with another address or size")
                self._pairs[offer.pair] = self._pairs.pop(offer.pair)
                return known
            for stale in [pair for pair in self._pairs if _base_of(pair) == base]:
                await self.close_pair(stale)
            while len(self._pairs) >= self._max_pairs:
                await self.close_pair(next(iter(self._pairs)))
            made = await self._connect(offer)
            if self._closed:
                await made.close()
                raise WorkerLost("this sender is closed")
            self._pairs[offer.pair] = made
            return made

    async def close_pair(self, pair: str) -> None:
        """See ``Sender.close_pair``."""
        known = self._pairs.pop(pair, None)
        if known is not None:
            await known.close()
        lock = self._connecting.get(_base_of(pair))
        if lock is not None and not lock.locked():
            del self._connecting[_base_of(pair)]

    async def close(self) -> None:
        """See ``Sender.close``."""
        self._closed = True
        for pair in list(self._pairs):
            await self.close_pair(pair)


def _check_offer(offer: TransportOffer, transport: str) -> None:
    if offer.transport != transport:
        raise ValueError(f"an offer of transport {offer.transport!r} cannot be used by {transport!r}")
    if offer.slot_bytes < 1 or offer.num_slots < 1 or not offer.pair or not offer.address:
        raise ValueError(f"malformed offer: {offer}")
