"""The sending end of a transport as a worker has it: what is sent lies packed at the data port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace

from stratos.common.errors import WorkerLost
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.sender import PairCache
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer


class PortPair:
    """One pair that the port has connected."""

    def __init__(self, offer: TransportOffer, port: DataPort, *, is_ordered: bool) -> None:
        self.offer = offer
        self._port, self._is_ordered = port, is_ordered
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
                self._end()

    async def send(self, header: FrameHeader) -> None:
        """Send what ``header.leg`` has packed; returns when the transport has all of it.

        Raises:
            ValueError: it does not fit the header or the offer.
            WorkerLost: the pair has ended.
        """
        self._unsent.discard(header.pair_seq)
        try:
            await self._port.send(self.offer.transport, self.offer.pair, header)
        except Exception:
            if self._is_ordered:
                self._end()  # frames of other legs would wait for this number, here and at the receiver
            raise

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._port.end_pair(self.offer.transport, self.offer.pair)


class PortSender(PairCache[PortPair]):
    """Pairs of ``transport`` that ``port`` has connected."""

    def __init__(self, transport: str, port: DataPort, max_pairs: int = 64) -> None:
        super().__init__(max_pairs)
        self.transport, self._port = transport, port

    async def close(self) -> None:
        # An engine that hangs never answers, and is ended only after this: what it connects later ends with its port.
        for attempt in self._connecting.values():
            attempt.cancel()
        await super().close()

    async def _connect(self, offer: TransportOffer) -> PortPair:
        try:
            return PortPair(offer, self._port, is_ordered=await self._port.connect(offer))
        except asyncio.CancelledError:  # by ``close``; callers that wait were not cancelled
            raise WorkerLost("this sender is closed") from None
