"""Frames over groups that know no tags: both sides issue operations in one order, as NCCL wants.

Legs of one pair announce their headers on streams of their own, so headers may come in another order than frames are
sent.  The sender numbers what it announces (``FrameHeader.pair_seq``) and sends by number; the receiver posts by
number, and holds a header back until those before it have come.

A number that never comes ends the pair: at the sender at once, where a frame was announced and is not sent; at the
receiver after ``timeout_s``.  A frame that is late therefore holds up the frames of other legs of its pair, for this
time at most.  Sizes are those of the headers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol

from stratos.common.errors import Internal, WorkerLost
from stratos.core.device.payload import Payload
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.fitting import checked_payload
from stratos.kv_transfer.groups.rendezvous import GroupConfig, HostedStore, join_as_sender
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import (
    FrameArrived,
    FrameHeader,
    PairSender,
    PortListener,
    Ring,
    RingBroken,
    TransportEnds,
    TransportOffer,
)


class OrderedGroup(Protocol):
    """Two ranks; the n-th ``send`` of one fills the n-th ``receive`` of the other. Calls come from one thread each."""

    def receive(self, memory: memoryview) -> None:
        """Block until ``memory`` is filled; raises ``RuntimeError`` when the group has ended."""
        ...

    def send(self, memory: memoryview) -> None:
        """Block until ``memory`` may be used again; raises ``RuntimeError`` when the group has ended."""
        ...

    def abort(self) -> None:
        """End the group here and at the peer; wakes what blocks. Any thread may call it."""
        ...


class GroupMaker(Protocol):
    """A kind of group."""

    name: str

    def memory(self, num_bytes: int) -> memoryview:
        """Host memory for staging slots."""
        ...

    def join(self, store: Any, pair: str, rank: int) -> OrderedGroup:
        """The group of a pair; blocks until both sides are there. Raises ``RuntimeError``."""
        ...


class _OrderedRing(Ring):
    completes_on_sent = False

    def __init__(self, maker: GroupMaker, staging: StagingConfig, config: GroupConfig, pair: str) -> None:
        self._maker, self._config, self._pair = maker, config, pair
        self._slot_bytes = staging.slot_bytes
        self._memory = maker.memory(staging.slot_bytes * staging.slots_per_pair)
        self._group: OrderedGroup | None = None
        self._early: dict[int, FrameHeader] = {}
        """Announced, and not received yet: the group is not there, or a number before it has not come."""
        self._next = 0
        self._gap: asyncio.TimerHandle | None = None
        self._closed = False
        self._joining: asyncio.Task[None] | None = None
        self._store = HostedStore(config)
        self.address = self._store.address
        self._threads = BlockingThreads(f"kv-{maker.name}-{self._store.port}", 1)
        self._ending = BlockingThreads(f"kv-{maker.name}-end-{self._store.port}", 1)

    def start(self, publish: PortListener) -> None:
        """Let the sender join, in the background."""
        self._publish = publish
        self._joining = asyncio.create_task(self._join(), name=f"kv-{self._maker.name}-join {self._pair}")

    def payload(self, slot: int, num_bytes: int) -> memoryview:
        return self._place(slot, num_bytes).toreadonly()

    def _place(self, slot: int, num_bytes: int) -> memoryview:
        return self._memory[slot * self._slot_bytes :][:num_bytes]

    def announce_frame(self, header: FrameHeader) -> None:
        number = header.pair_seq
        if number < self._next or number in self._early:
            raise Internal(f"frame {header.seq} of leg {header.leg} has the number of another one")
        self._early[number] = header
        self._receive_in_order()

    def close(self) -> asyncio.Future[Any]:
        self._closed = True
        if self._joining is not None:
            self._joining.cancel()
        self._store.close()
        if self._gap is not None:
            self._gap.cancel()
        if self._group is not None:
            self._ending.submit(self._group.abort)
        return asyncio.gather(self._threads.close(), self._ending.close())

    async def _join(self) -> None:
        try:
            self._group = await self._store.join(self._pair, self._maker.join, self._threads)
        except (RuntimeError, TimeoutError) as err:
            self._broken(f"the source did not join: {str(err) or 'no hello from it'}")
            return
        self._receive_in_order()

    def _receive_in_order(self) -> None:
        if self._group is None or self._closed:
            return
        while (header := self._early.pop(self._next, None)) is not None:
            self._next += 1
            memory = self._place(header.slot, header.num_bytes)
            receiving = self._threads.submit(self._group.receive, memory)
            receiving.add_done_callback(partial(self._received, header))
        if self._gap is not None:
            self._gap.cancel()
            self._gap = None
        if self._early:
            loop = asyncio.get_running_loop()
            self._gap = loop.call_later(self._config.timeout_s, self._broken, "a frame was sent without its header")

    def _received(self, header: FrameHeader, done: asyncio.Future[Any]) -> None:
        if (error := done.exception()) is not None:
            self._broken(str(error))
        elif not self._closed:
            self._publish(FrameArrived(pair=self._pair, leg=header.leg, seq=header.seq))

    def _broken(self, why: str) -> None:
        if not self._closed:
            self._publish(RingBroken(pair=self._pair, why=f"the connection broke: {why}"))


class _OrderedPair(PairSender):
    is_ordered = True

    def __init__(
        self, offer: TransportOffer, config: GroupConfig, group: OrderedGroup, threads: BlockingThreads, name: str
    ) -> None:
        self.offer = offer
        self._config = config
        self._group: OrderedGroup | None = group
        self._threads = threads
        self._ending = BlockingThreads(f"kv-{name}-end-to-{offer.address}", 1)
        self._turn = 0
        self._waiting: dict[int, tuple[memoryview, asyncio.Future[None]]] = {}
        """Payloads whose turn has not come."""

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        data = checked_payload(self.offer, header, payload)
        if self._group is None:
            raise self._lost()
        if header.pair_seq < self._turn or header.pair_seq in self._waiting:
            raise ValueError(f"number {header.pair_seq} of the pair was sent already")
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[header.pair_seq] = (data, sent)
        self._send_in_order()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                await asyncio.shield(sent)
        except (RuntimeError, TimeoutError) as err:
            await self.close()
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} broke: {str(err) or 'timed out'}") from err

    async def close(self) -> None:
        self._end()
        await asyncio.shield(asyncio.gather(self._threads.close(), self._ending.close()))

    def _end(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        self._ending.submit(group.abort)
        waiting, self._waiting = self._waiting, {}
        for _, sent in waiting.values():
            sent.set_exception(RuntimeError("the pair has ended"))
            sent.exception()  # its sender may be gone

    def _send_in_order(self) -> None:
        while self._group is not None and (found := self._waiting.pop(self._turn, None)) is not None:
            self._turn += 1
            data, sent = found
            self._threads.submit(self._group.send, data).add_done_callback(
                lambda done, sent=sent: _pass_on(done, sent)  # type: ignore[misc]
            )

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")


def _pass_on(done: asyncio.Future[Any], sent: asyncio.Future[None]) -> None:
    error = done.exception()
    if sent.done():
        return
    if error is None:
        sent.set_result(None)
    else:
        sent.set_exception(error)
        sent.exception()  # its sender may be gone


def ordered_ends(staging: StagingConfig, config: GroupConfig, maker: GroupMaker) -> TransportEnds:
    """Ends with one group per pair."""

    async def open_ring(pair: str) -> Ring:
        return _OrderedRing(maker, staging, config, pair)

    async def connect(offer: TransportOffer) -> PairSender:
        threads = BlockingThreads(f"kv-{maker.name}-to-{offer.address}", 1)
        group = await join_as_sender(offer, config, maker.join, threads)
        return _OrderedPair(offer, config, group, threads, maker.name)

    return TransportEnds(open_ring=open_ring, connect=connect)
