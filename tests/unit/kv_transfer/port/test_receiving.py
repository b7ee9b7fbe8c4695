"""Random hand-offs over one receiver: no slot that a source may still write goes to another leg, in any history."""

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from stratos.common.errors import WorkerLost
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.inproc import InprocHub, inproc_ends
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import FrameHeader
from tests.support.examples import examples
from tests.support.kv.memory_pages import MemoryPages

NUM_SLOTS = 5


def _payload(leg, seq):
    return random.Random(f"{leg}/{seq}").randbytes(16)


class _Leg:
    """Both ends' knowledge of a leg: what the source may still write, what the receiver has open."""

    def __init__(self, number, pair):
        self.name = f"leg-{number}"
        self.pair = pair
        self.credits = set()
        """Slots the source may announce a frame for."""
        self.announced = {}
        """seq -> header: the payload is not there yet."""
        self.arrived = {}
        """seq -> header: to be read."""
        self.num_frames = 0
        self.is_aborted = False

    @property
    def writable(self):
        return self.credits | {header.slot for header in self.announced.values()}


class HandOffs(RuleBasedStateMachine):
    """Plays both ends of many legs between one source, which may restart, and one receiver."""

    legs = Bundle("legs")

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        hub = InprocHub()
        config = StagingConfig(slot_bytes=16, slots_per_pair=NUM_SLOTS)
        self.source = inproc_ends(config, hub)
        self.pages = MemoryPages()
        self.port = LocalPort({"inproc": PortTransport(make=lambda: inproc_ends(config, hub))}, self.pages)
        self.receiver = StagingSlots("inproc", "inc-d", config, self.port)
        self.every_leg = []
        self.pairs = {}
        """Senders by pair name, also of pairs that ended."""
        self.current = ""

    def teardown(self):
        self.loop.run_until_complete(self.receiver.close())
        self.loop.run_until_complete(self.port.close())
        self.loop.close()

    def _run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def _others_may_write(self, leg):
        return set().union(*(o.writable for o in self.every_leg if o is not leg and o.pair == leg.pair))

    @rule(target=legs, want=st.integers(1, 4))
    def grant(self, want):
        offer = self._run(self.receiver.open_pair("inc-p"))
        self.current = offer.pair
        self.pairs[offer.pair] = self._run(self.source.connect(offer))
        leg = _Leg(len(self.every_leg), offer.pair)
        leg.credits = set(self.receiver.allocate_slots(leg.pair, want, leg=leg.name))
        assert not leg.credits & self._others_may_write(leg), "a slot was granted that another leg may still write"
        if not leg.credits:
            return multiple()
        self.every_leg.append(leg)
        return leg

    @rule(leg=legs)
    def announce(self, leg):
        if leg.credits and leg.pair == self.current:
            header = FrameHeader(
                leg=leg.name, seq=leg.num_frames, kv_range=KvRange(0, 1, 0, 1), head_begin=0,
                head_end=1, num_bytes=16, checksum=checksum(_payload(leg.name, leg.num_frames)), slot=leg.credits.pop(),
            )  # fmt: skip
            leg.num_frames += 1
            leg.announced[header.seq] = header
            self.receiver.announce_frame(leg.pair, header)

    @rule(leg=legs)
    def send(self, leg):
        if leg.announced:
            header = leg.announced.pop(min(leg.announced))
            if leg.pair != self.current:
                with pytest.raises(WorkerLost):
                    self._run(self.pairs[leg.pair].send(header, _payload(header.leg, header.seq)))
                return
            self._run(self.pairs[leg.pair].send(header, _payload(header.leg, header.seq)))
            self.receiver.notify_sent(leg.pair, leg.name, header.seq)
            if not leg.is_aborted:
                leg.arrived[header.seq] = header

    @rule(leg=legs, again=st.booleans())
    def read(self, leg, again):
        if leg.arrived:
            header = leg.arrived.pop(min(leg.arrived))
            self._run(self.receiver.wait_arrived(leg.pair, leg.name, header.seq, timeout_s=0))
            key = RequestKey(leg.name, header.seq)
            assert self._run(self.port.receive(leg.pair, key, header)) == header.checksum
            assert self.pages.written.pop(key) == _payload(header.leg, header.seq), "another leg wrote this slot"
            if again:
                self.receiver.recycle_slot(leg.pair, header.slot)
                leg.credits.add(header.slot)
            else:
                self.receiver.release_slot(leg.pair, header.slot)

    @rule(leg=legs)
    def abort(self, leg):
        if not leg.is_aborted:
            leg.is_aborted = True
            for header in leg.arrived.values():
                self.receiver.release_slot(leg.pair, header.slot)
            leg.arrived.clear()
            self.receiver.quarantine(leg.pair, self.receiver.slots_of(leg.pair, leg.name), leg=leg.name)

    @rule(leg=consumes(legs))
    def end(self, leg):
        """The source sends what it announced, and says AbortAck."""
        self.abort(leg)
        while leg.announced:
            self.send(leg)
        leg.credits.clear()
        self.receiver.settle(leg.pair, leg.name)

    @rule()
    def end_all(self):
        self.receiver.end_incarnation("inc-p")
        assert self.receiver.ledger().total == 0
        self.current = ""
        for leg in self.every_leg:
            leg.credits, leg.arrived, leg.is_aborted = set(), {}, True

    @invariant()
    def the_law_holds(self):
        counts = self.receiver.ledger()
        assert counts.total in (0, NUM_SLOTS)
        held = {
            slot
            for leg in self.every_leg
            if leg.pair == self.current
            for slot in leg.writable | {header.slot for header in leg.arrived.values()}
        }
        if counts.total:
            assert counts.free == NUM_SLOTS - len(held), "a slot leaked, or was freed too early"


HandOffs.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestHandOffs = HandOffs.TestCase
