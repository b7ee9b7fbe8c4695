"""Transport over TCP by torch's Gloo, for CPU workers on different machines.

Each pair is a process group of two, which listen on ephemeral ports of ``host`` only.

Life of a frame: a receive is posted with the header, a send with the payload; they meet by a tag made of leg and
``seq``, in any order, so a frame of an old leg never lands in a receive of a new one.  A posted receive has the size
of a whole slot, for any size in the header: Gloo ends the *process* when a message is larger than its receive.

Gloo cannot give up one operation: when a wait passes ``timeout_s`` the pair breaks on both sides, as it does at once
when the peer's process dies.  Closing a pair uses just that: a receive that gets no answer, with a timeout of a
millisecond, wakes all waiters (``ProcessGroupGloo.abort`` does not).

Frames are paired by tags and not by their order (``ordered``), which took 2.9 times as long for 128 MiB (445 ms, not
154, over loopback on 2 cores of an AMD EPYC): one receive after the other leaves the connection idle in between.

Gloo neither encrypts nor authenticates; the network between workers must do both.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
from datetime import timedelta
from typing import Any

from stratos.common.errors import WorkerLost
from stratos.core.device.payload import Payload
from stratos.kv_transfer.blocking import BlockingThreads
from stratos.kv_transfer.fitting import checked_payload
from stratos.kv_transfer.groups.rendezvous import RECEIVER_RANK, SENDER_RANK, HostedStore, join_as_sender
from stratos.kv_transfer.settings import GlooConfig, StagingConfig
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

_NOBODY_SENDS_TAG = 2**31 - 1


def _tag(header: FrameHeader) -> int:
    digest = hashlib.sha256(f"{header.leg}/{header.seq}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % _NOBODY_SENDS_TAG


class GlooTorch:
    """The few parts of torch that Gloo takes, which torch's type stubs do not know."""

    def __init__(self, config: GlooConfig) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._config = config

    def tensor(self, memory: memoryview | bytearray) -> Any:
        """The same memory as a tensor of bytes."""
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def join(self, store: Any, pair: str, rank: int) -> Any:
        """The process group of a pair; blocks until both sides are there."""
        group_class = self._dist.ProcessGroupGloo
        options = group_class._Options()
        options._timeout = self._config.timeout
        options._devices = [group_class.create_device(hostname=self._config.host)]
        return group_class(self._dist.PrefixStore(pair, store), rank, 2, options)

    def break_group(self, group: Any, peer: int) -> None:
        """Make every operation on the group fail, here and at the peer."""
        with contextlib.suppress(RuntimeError):
            unanswered = group.recv([self.tensor(bytearray(1))], peer, _NOBODY_SENDS_TAG)
            unanswered.wait(timedelta(milliseconds=1))


class _GlooRing(Ring):
    completes_on_sent = False

    def __init__(self, torch: GlooTorch, config: StagingConfig, gloo: GlooConfig, pair: str) -> None:
        self._torch = torch
        self._gloo = gloo
        self._pair = pair
        self._slot_bytes = config.slot_bytes
        self._memory = memoryview(bytearray(config.slot_bytes * config.slots_per_pair))
        self._group: Any = None
        self._backlog: list[FrameHeader] = []
        """Announced before the sender had joined; at most one frame per slot."""
        self._closed = False
        self._joining: asyncio.Task[None] | None = None
        self._store = HostedStore(gloo)
        self.address = self._store.address
        self._threads = BlockingThreads(f"kv-gloo-{self._store.port}", config.slots_per_pair + 1)

    def start(self, publish: PortListener) -> None:
        """Let the sender join, in the background."""
        self._publish = publish
        self._joining = asyncio.create_task(self._join(), name=f"kv-gloo-join {self._pair}")

    def payload(self, slot: int, num_bytes: int) -> memoryview:
        return self._memory[slot * self._slot_bytes :][:num_bytes].toreadonly()

    def announce_frame(self, header: FrameHeader) -> None:
        if self._group is None:
            self._backlog.append(header)
        else:
            self._receive(header)

    def close(self) -> asyncio.Future[None]:
        self._closed = True
        if self._joining is not None:
            self._joining.cancel()
        group, self._group = self._group, None
        self._store.close()
        if group is not None:
            self._threads.submit(self._torch.break_group, group, SENDER_RANK)
        return self._threads.close()

    async def _join(self) -> None:
        try:
            self._group = await self._store.join(self._pair, self._torch.join, self._threads)
        except (RuntimeError, TimeoutError) as err:
            self._broken(f"the source did not join: {str(err) or 'no hello from it'}")
            return
        for header in self._backlog:
            self._receive(header)
        self._backlog.clear()

    def _receive(self, header: FrameHeader) -> None:
        if self._closed:
            return
        try:
            begin = header.slot * self._slot_bytes
            place = self._torch.tensor(self._memory[begin : begin + self._slot_bytes])
            work = self._group.recv([place], SENDER_RANK, _tag(header))
        except RuntimeError as err:
            self._broken(str(err))
            return
        waiting = self._threads.submit(work.wait, self._gloo.timeout)
        waiting.add_done_callback(lambda done: self._received(header, done))

    def _received(self, header: FrameHeader, done: asyncio.Future[Any]) -> None:
        if (error := done.exception()) is not None:
            self._broken(str(error))
        elif not self._closed:
            self._publish(FrameArrived(pair=self._pair, leg=header.leg, seq=header.seq))

    def _broken(self, why: str) -> None:
        if not self._closed:
            self._publish(RingBroken(pair=self._pair, why=f"the connection broke: {why}"))


class _GlooPair(PairSender):
    def __init__(
        self, torch: GlooTorch, offer: TransportOffer, gloo: GlooConfig, group: Any, threads: BlockingThreads
    ) -> None:
        self.offer = offer
        self._torch = torch
        self._gloo = gloo
        self._group = group
        self._threads = threads

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        data = checked_payload(self.offer, header, payload)
        if self._group is None:
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} has ended")
        # torch warns of read-only memory, though a send does not write it; copying is better than a global filter.
        tensor = self._torch.tensor(bytearray(data) if data.readonly else data)
        try:
            work = self._group.send([tensor], RECEIVER_RANK, _tag(header))
            await self._threads.submit(work.wait, self._gloo.timeout)
        except RuntimeError as err:
            await self.close()
            raise WorkerLost(f"the KV transfer pair {self.offer.pair} broke: {err}") from err

    async def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            self._threads.submit(self._torch.break_group, group, RECEIVER_RANK)
            del group
        await asyncio.shield(self._threads.close())


def gloo_ends(config: StagingConfig, gloo: GlooConfig) -> TransportEnds:
    """Ends with one process group per pair."""
    torch = GlooTorch(gloo)

    async def open_ring(pair: str) -> Ring:
        return _GlooRing(torch, config, gloo, pair)

    async def connect(offer: TransportOffer) -> PairSender:
        threads = BlockingThreads(f"kv-gloo-to-{offer.address}", offer.num_slots + 1)
        group = await join_as_sender(offer, gloo, torch.join, threads)
        return _GlooPair(torch, offer, gloo, group, threads)

    return TransportEnds(open_ring=open_ring, connect=connect)
