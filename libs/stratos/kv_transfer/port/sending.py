"""Sending end of a transport as a worker has it: the payloads lie gathered at the data port.

Each pair is connected once; beyond ``max_pairs`` the least recently connected one is closed, and an older generation
of a pair with the newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stratos.common.errors import WorkerLost
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer

KEPT_LOOKS = 4
"""Receivers keep a pair for two looks at most; what they offer must be there, since a ring is attached to once."""


class PortPair:
    """One pair that the port has connected."""

    def __init__(self, offer: TransportOffer, port: DataPort, *, is_ordered: bool) -> None:
        self.offer = offer
        self._port, self._is_ordered = port, is_ordered
        self.num_unused = 0
        """Looks for pairs that no leg needs since a leg has had it."""
        self._num_announced = 0
        self._unsent: set[int] = set()
        self._is_ended = False

    @contextlib.contextmanager
    def announcing(self, header: FrameHeader) -> Iterator[FrameHeader]:
        """Surrounds the announcement of a frame and its ``send``; the header that is yielded is the one to announce.

        Where frames are paired by order it gets its number, and a block that fails before it has sent the frame ends
        the pair: the receiver waits for that number.

        Raises:
            WorkerLost: the pair has ended.
        """
        self.num_unused = 0
        if not self._is_ordered:
            yield header
            return
        if self._is_ended:
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")
        number, self._num_announced = self._num_announced, self._num_announced + 1
        self._unsent.add(number)
        try:
            yield replace(header, pair_seq=number)
        finally:
            if number in self._unsent:
                self._unsent.discard(number)
                self.end()

    async def send(self, header: FrameHeader) -> None:
        """Send the buffer of ``header.leg``; returns when the transport has all of it.

        Raises:
            ValueError: it does not fit the header or the offer.
            WorkerLost: the pair has ended.
        """
        self._unsent.discard(header.pair_seq)
        try:
            await self._port.send(self.offer.transport, self.offer.pair, header)
        except Exception:
            if self._is_ordered:
                self.end()  # frames of other legs would wait for this number, here and at the receiver
            raise

    def end(self) -> None:
        """Close the connection."""
        if not self._is_ended:
            self._is_ended = True
            self._port.end_pair(self.offer.transport, self.offer.pair)


class PortSender:
    """Pairs of ``transport`` that ``port`` has connected."""

    def __init__(self, transport: str, port: DataPort, max_pairs: int = 64) -> None:
        if max_pairs < 1:
            raise ValueError("max_pairs must be positive")
        self.transport, self._port, self._max_pairs = transport, port, max_pairs
        self._pairs: dict[str, PortPair] = {}
        """Least recently connected first."""
        self._connecting: dict[str, asyncio.Task[PortPair]] = {}
        self._closed = False

    @property
    def num_pairs(self) -> int:
        """Pairs that are connected."""
        return len(self._pairs)

    async def connect(self, offer: TransportOffer) -> PortPair:
        """The pair of an offer, connected on first use.

        Raises:
            ValueError: the offer is of another transport, or malformed.
            WorkerLost: no receiver is there.
            Internal: its memory cannot be used from the port's process, now or later.
        """
        _check_offer(offer, self.transport)
        known = self._pairs.get(offer.pair)
        if known is not None:
            if known.offer != offer:
                raise ValueError(f"the pair {offer.pair} was offered before with another address or size")
            self._pairs[offer.pair] = self._pairs.pop(offer.pair)
            known.num_unused = 0
            return known
        # Callers that come later, also after one that gave up, share the attempt.
        task = self._connecting.get(offer.pair)
        if task is None:
            task = asyncio.create_task(self._attach(offer), name=f"kv-connect {offer.pair}")
            task.add_done_callback(_mark_seen)  # all who waited may have given up
            self._connecting[offer.pair] = task
        return await asyncio.shield(task)

    def close_pair(self, pair: str) -> None:
        """Close one pair; unknown ones are ignored."""
        if (known := self._pairs.pop(pair, None)) is not None:
            known.end()

    def end_idle(self) -> None:
        """Close the pairs that no leg has had since so many calls that their receivers have ended them."""
        for name, pair in list(self._pairs.items()):
            pair.num_unused += 1
            if pair.num_unused > KEPT_LOOKS:
                self.close_pair(name)

    async def close(self) -> None:
        """Close all pairs."""
        # An engine that hangs never answers, and is ended only after this: what it connects later ends with its port.
        self._closed = True
        for attempt in self._connecting.values():
            attempt.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for pair in list(self._pairs):
            self.close_pair(pair)

    async def _attach(self, offer: TransportOffer) -> PortPair:
        try:
            if self._closed:
                raise WorkerLost("this sender is closed")
            made = PortPair(offer, self._port, is_ordered=await self._port.connect(offer))
        except asyncio.CancelledError:  # by ``close``; callers that wait were not cancelled
            raise WorkerLost("this sender is closed") from None
        finally:
            del self._connecting[offer.pair]
        self._pairs[offer.pair] = made
        stale = [pair for pair in self._pairs if pair != offer.pair and _base_of(pair) == _base_of(offer.pair)]
        stale += [pair for pair in self._pairs if pair not in stale][: -self._max_pairs]
        for pair in stale:
            self.close_pair(pair)
        return made


def _base_of(pair: str) -> str:
    """The pair's name without its generation."""
    return pair.rpartition("#")[0]


def _mark_seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _check_offer(offer: TransportOffer, transport: str) -> None:
    if offer.transport != transport:
        raise ValueError(f"an offer of transport {offer.transport!r} cannot be used by {transport!r}")
    if offer.slot_bytes < 1 or offer.num_slots < 1 or not offer.pair or not offer.address:
        raise ValueError(f"malformed offer: {offer}")
