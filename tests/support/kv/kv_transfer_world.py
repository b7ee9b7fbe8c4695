"""What the KV transfer tests share: both ends of a transport, a leg to drive, senders in other processes.

Both ends are as a worker has them: the slot ledger here, memory and connections at a data port, in this process or in
one of its own.
"""

import asyncio
import dataclasses
import gc
import json
import os
import random
import socket
import threading
import weakref
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

from stratos.common.errors import WorkerLost
from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.device.payload import host_view
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.local import LocalPort
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.port.sending import PortSender
from stratos.kv_transfer.transfer import FrameHeader, PairSender
from tests.support.kv.port_process import FilePages, engine_over, settings_of, transport_of
from tests.support.kv.segment_memory import SEGMENTS, SegmentMemory
from tests.support.servers import warm_process
from tests.support.servers.certificates import CertificateFolder
from tests.support.waiting import eventually

SLOT_BYTES = 64 * 1024
LONG_S = 60.0
"""For what must happen; never waited for in a green run, and close to the limit of a test."""
SHORT_S = 0.2
"""For what must not happen."""


def payload_of(seq, num_bytes):
    """Bytes that differ from frame to frame; a peer process makes the same ones."""
    return random.Random(seq).randbytes(num_bytes)


def header_of(leg, seq, slot, payload, pair_seq=0):
    return FrameHeader(
        leg=leg, seq=seq, kv_range=KvRange(seq, seq + 1, 0, 6), head_begin=0, head_end=4,
        num_bytes=len(payload), checksum=checksum(payload), slot=slot, pair_seq=pair_seq,
    )  # fmt: skip


class KnownRings:
    """Rings whose memory a test can look at, of pairs that have not ended."""

    def __init__(self, open_ring):
        self._open_ring, self.by_pair = open_ring, weakref.WeakValueDictionary()

    async def open_ring(self, pair):
        made = self.by_pair[pair] = await self._open_ring(pair)
        return made


class HeaderKeeper(StagingSlots):
    """Remembers what was announced, for the calls that come after it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.headers = {}

    def announce_frame(self, pair, header):
        super().announce_frame(pair, header)
        self.headers[pair, header.leg, header.seq] = header


class _GatheringPair(PairSender):
    def __init__(self, pair, port, pages):
        self.offer, self.pair = pair.offer, pair
        self._port, self._pages = port, pages
        self._gathering = asyncio.Lock()

    def announcing(self, header):
        return self.pair.announcing(header)

    async def send(self, header, payload):
        async with self._gathering:  # a leg gathers one frame at a time
            self._pages.compute(header.leg, header.kv_range, payload)
            await self._port.gather(self.offer.transport, header.leg, header.kv_range)
            sending = asyncio.create_task(self.pair.send(header))
            await asyncio.sleep(0)  # the port has the order, and so the payload
        await sending

    async def close(self):
        self.pair.end()


class GatheringSender:
    """A sender of payloads over a port: they are computed KV for as long as it takes to gather them."""

    def __init__(self, transport, port, pages):
        self._inner, self._port, self._pages = PortSender(transport, port), port, pages
        self._pairs = {}

    async def connect(self, offer):
        pair = await self._inner.connect(offer)
        known = self._pairs.get(offer.pair)
        if known is None or known.pair is not pair:
            known = self._pairs[offer.pair] = _GatheringPair(pair, self._port, self._pages)
        return known

    async def close(self):
        await self._inner.close()
        await self._port.close()


class World:
    """One receiver, and senders to it, of one transport; their port is in this process unless ``open`` moves it."""

    def __init__(self, transport, directory, *, num_slots=4, max_pairs=8, gloo_timeout_s=10.0):
        self.transport = transport
        self.directory = directory
        self.gloo_timeout_s = gloo_timeout_s
        self.hub = InprocHub()
        self.certificates = CertificateFolder(directory.parent / "tls") if transport == "tls" else None
        self.options = {
            "transport": transport, "directory": str(directory), "pages": str(directory.parent / "pages"),
            "certificates": str(self.certificates.path) if self.certificates else "", "slot_bytes": SLOT_BYTES,
            "num_slots": num_slots, "max_pairs": max_pairs, "timeout_s": gloo_timeout_s,
        }  # fmt: skip
        self.settings = settings_of(self.options)
        self.pages = FilePages(directory.parent / "pages", is_on_device=transport == SEGMENTS)
        parts = transport_of(self.options, self.hub, PeerRole.DECODE_WORKER)
        ends = parts.make()
        self.ring_maker = getattr(ends.open_ring, "__self__", None)
        """Of the port in this process, where rings share something."""
        self.rings = KnownRings(ends.open_ring)
        ends = dataclasses.replace(ends, open_ring=self.rings.open_ring)
        self.engine = None
        self._use(LocalPort({transport: dataclasses.replace(parts, make=lambda: ends)}, self.pages))
        self.num_posted = Counter()
        """By pair: frames that were announced."""
        self.senders = []

    async def move_port(self):
        """Use the port of an engine's process, before anything else is done."""
        self.engine = engine_over(self.options)
        await self.engine.start()
        self._use(self.engine.data_port)

    def _use(self, port):
        self.port = port
        self.receiver = HeaderKeeper(self.transport, "inc-d", self.settings.staging, port)

    def contexts(self, role):
        """The certificate of a role, where the transport needs one."""
        return TlsContexts(self.certificates.files(role)) if self.certificates else None

    def make_sender(self, role=PeerRole.PREFILL_WORKER):
        port = self.port
        if self.engine is None:
            port = LocalPort({self.transport: transport_of(self.options, self.hub, role)}, self.pages)
        return GatheringSender(self.transport, port, self.pages)

    def sender(self):
        made = self.make_sender()
        self.senders.append(made)
        return made

    async def link(self, source="inc-p", leg="leg-1", want=2, sender=None):
        """A pair that is connected, and a leg on it that holds slots."""
        offer = await self.receiver.open_pair(source)
        pair = await (sender or self.sender()).connect(offer)
        return Link(self, offer, pair, leg, self.receiver.allocate_slots(offer.pair, want, leg=leg))

    async def take(self, pair, leg, seq, timeout_s=LONG_S):
        """Wait for a frame and have it written; returns what was, nothing if that is not what was announced."""
        await self.receiver.wait_arrived(pair, leg, seq, timeout_s=timeout_s)
        header, key = self.receiver.headers[pair, leg, seq], RequestKey(leg, 0)
        check = await self.port.receive(pair, key, header)
        if check is None:
            raise WorkerLost("the pair has ended")
        written = self.pages.written(key, header.kv_range)
        if check == header.checksum:
            assert checksum(written) == check
            return written
        assert written is None or self.transport == SEGMENTS, "what was not checked was written"
        return b""

    def memory(self, link, slot):
        """The memory of a slot in any state."""
        return host_view(self.rings.by_pair[link.name].payload(slot, SLOT_BYTES))

    async def close(self):
        await asyncio.gather(self.receiver.close(), *(sender.close() for sender in self.senders))
        await self.port.close()
        if self.engine is not None:
            await self.engine.close()
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kv-")]
        assert not list(self.directory.iterdir()), "staging files were left"
        if self.transport == SEGMENTS:
            gc.collect()
            device = SegmentMemory(self.directory.parent / "device")
            # the thread that made an allocation may keep it for a moment
            await eventually(lambda: not device.num_allocations, "every ring is freed")
            assert device.freed_too_early == []


class Link:
    """One leg over one pair, driven as a worker would: control by calls, payload by the transport."""

    def __init__(self, world, offer, sender, leg, slots):
        self.world, self.offer, self.sender, self.leg, self.slots = world, offer, sender, leg, slots
        self.receiver, self.name = world.receiver, offer.pair

    def leg_of(self, leg, want=2):
        return Link(self.world, self.offer, self.sender, leg, self.receiver.allocate_slots(self.name, want, leg=leg))

    def post(self, seq, slot, payload):
        header = header_of(self.leg, seq, slot, payload, self.world.num_posted[self.name])
        self.world.num_posted[self.name] += 1
        self.receiver.announce_frame(self.name, header)
        return header

    async def send(self, header, payload):
        await self.sender.send(header, payload)
        self.receiver.notify_sent(self.name, self.leg, header.seq)

    async def wait(self, seq, timeout_s=LONG_S):
        return await self.world.take(self.name, self.leg, seq, timeout_s)

    async def transfer(self, seq, slot, payload, timeout_s=LONG_S):
        """Announce, send, wait; returns what was written."""
        header = self.post(seq, slot, payload)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.send(header, payload))
            arrived = group.create_task(self.wait(seq, timeout_s))
        return arrived.result()

    def release(self):
        for slot in self.receiver.slots_of(self.name, self.leg):
            self.receiver.release_slot(self.name, slot)


class PeerProcess:
    """A sender in a process of its own; orders and answers are lines of JSON."""

    def __init__(self, process, answers, orders):
        self._process, self._answers, self._orders = process, answers, orders
        self.pid = process.pid

    @classmethod
    @asynccontextmanager
    async def start(cls, world, **faults):
        options = {**world.options, "faults": faults}
        ours, its = socket.socketpair()
        with its:
            process = warm_process.WarmChild(
                warm_process.begin(
                    "tests.support.kv.kv_transfer_peer",
                    json.dumps(options),
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    files=(its.fileno(), its.fileno(), 2),
                )
            )
        peer = cls(process, *await asyncio.open_unix_connection(sock=ours))
        try:
            assert await peer.answer() == {"ok": True}
            yield peer
        finally:
            process.kill()
            await process.wait()
            peer.hang_up()

    async def order(self, **order):
        """Give an order, return the answer; ``{}`` when the process ended instead."""
        self._orders.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    def hang_up(self):
        self._orders.close()

    async def answer(self):
        """The next answer; ``{}`` when the process ended instead."""
        try:
            line = await self._answers.readline()
        except ConnectionResetError:  # it ended with an order unread
            line = b""
        return json.loads(line) if line else {}

    async def connect(self, offer):
        assert await self.order(do="connect", offer=dataclasses.asdict(offer)) == {"ok": True}

    async def send(self, header):
        return await self.order(do="send", header=dataclasses.asdict(header))

    async def returncode(self):
        return await self._process.wait()

    def signal(self, number):
        self._process.send_signal(number)

    @property
    def state(self):
        """One letter as ``ps`` shows it; "T" is stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
