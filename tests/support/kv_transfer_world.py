"""What the KV transfer tests share: both ends of a transport, a leg to drive, senders in other processes."""

import asyncio
import dataclasses
import gc
import json
import os
import random
import socket
import threading
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.device.payload import host_view
from stratos.core.kv import KvRange
from stratos.kv.framing import checksum
from stratos.kv.groups.ordered import OrderedReceiver, OrderedSender
from stratos.kv.inproc import InprocHub
from stratos.kv.registry import make_receiver, make_sender
from stratos.kv.settings import GlooConfig, StagingConfig, TlsTransportConfig, TransportConfig
from stratos.kv.transfer import FrameHeader
from tests.support import warm_process
from tests.support.certificates import CertificateFolder
from tests.support.ordered_gloo import OrderedGloo
from tests.support.segment_memory import SEGMENTS, SegmentMemory, receiver_over, sender_over
from tests.support.waiting import eventually

SLOT_BYTES = 64 * 1024
LONG_S = 30.0
"""For what must happen; never waited for in a green run."""
SHORT_S = 0.2
"""For what must not happen."""


def payload_of(seq, num_bytes):
    """Bytes that differ from frame to frame; a peer process makes the same ones."""
    return random.Random(seq).randbytes(num_bytes)


def receiver_of(transport, settings, **parts):
    """Of a transport of the product, or of the one that stands for NCCL."""
    if transport == OrderedGloo.name:
        return OrderedReceiver("inc-d", settings.staging, settings.gloo, OrderedGloo(settings.gloo))
    if transport == SEGMENTS:
        return receiver_over(settings.shm_directory, settings.staging, settings.gloo.timeout_s)
    return make_receiver(transport, "inc-d", settings, **parts)


def sender_of(transport, settings, **parts):
    if transport == OrderedGloo.name:
        return OrderedSender(settings.gloo, OrderedGloo(settings.gloo))
    if transport == SEGMENTS:
        return sender_over(settings.shm_directory, settings.gloo.timeout_s)
    return make_sender(transport, settings, **parts)


def header_of(leg, seq, slot, payload, pair_seq=0):
    return FrameHeader(
        leg=leg, seq=seq, kv_range=KvRange(seq, seq + 1, 0, 6), head_begin=0, head_end=4,
        num_bytes=len(payload), checksum=checksum(payload), slot=slot, pair_seq=pair_seq,
    )  # fmt: skip


class World:
    """One receiver, and senders to it, of one transport."""

    def __init__(self, transport, directory, *, num_slots=4, max_pairs=8, gloo_timeout_s=LONG_S / 3):
        self.transport = transport
        self.directory = directory
        self.gloo_timeout_s = gloo_timeout_s
        self.hub = InprocHub()
        self.settings = TransportConfig(
            shm_directory=directory,
            staging=StagingConfig(slot_bytes=SLOT_BYTES, slots_per_pair=num_slots, max_pairs=max_pairs),
            gloo=GlooConfig(timeout_s=gloo_timeout_s),
            tls=TlsTransportConfig(timeout_s=gloo_timeout_s),
        )
        self.certificates = CertificateFolder(directory.parent / "tls") if transport == "tls" else None
        self.receiver = receiver_of(transport, self.settings, hub=self.hub, tls=self.contexts(PeerRole.DECODE_WORKER))
        self.num_posted = Counter()
        """By pair: frames that were announced."""
        self.senders = []

    def contexts(self, role):
        """The certificate of a role, where the transport needs one."""
        return TlsContexts(self.certificates.files(role)) if self.certificates else None

    def make_sender(self, role=PeerRole.PREFILL_WORKER):
        return sender_of(self.transport, self.settings, hub=self.hub, tls=self.contexts(role))

    def sender(self):
        made = self.make_sender()
        self.senders.append(made)
        return made

    async def link(self, source="inc-p", leg="leg-1", want=2, sender=None):
        """A pair that is connected, and a leg on it that holds slots."""
        offer = await self.receiver.open_pair(source)
        pair = await (sender or self.sender()).connect(offer)
        return Link(self, offer, pair, leg, self.receiver.allocate_slots(offer.pair, want, leg=leg))

    def memory(self, link, slot):
        """The memory of a slot in any state."""
        return self.receiver._pairs[link.name].ring.view(slot)

    async def close(self):
        async with asyncio.timeout(LONG_S):
            await asyncio.gather(self.receiver.close(), *(sender.close() for sender in self.senders))
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
        self.receiver.post(self.name, header)
        return header

    async def send(self, header, payload):
        await self.sender.send(header, payload)
        self.receiver.notify_sent(self.name, self.leg, header.seq)

    async def wait(self, seq, timeout_s=LONG_S):
        return host_view(await self.receiver.wait(self.name, self.leg, seq, timeout_s=timeout_s))

    async def transfer(self, seq, slot, payload, timeout_s=LONG_S):
        """Announce, send, wait; returns what is in the slot."""
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
        options = {
            "transport": world.transport,
            "directory": str(world.directory),
            "certificates": str(world.certificates.path) if world.certificates else "",
            "gloo_timeout_s": world.gloo_timeout_s,
            "faults": faults,
        }
        ours, its = socket.socketpair()
        with its:
            process = warm_process.WarmChild(
                warm_process.begin(
                    "tests.support.kv_transfer_peer",
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
        async with asyncio.timeout(LONG_S):
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
        async with asyncio.timeout(LONG_S):
            return await self._process.wait()

    def signal(self, number):
        self._process.send_signal(number)

    @property
    def state(self):
        """One letter as ``ps`` shows it; "T" is stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
