"""What every receiver has in common: pairs, their slot ledgers, announced frames and their waiters.

A transport brings ``Rings``, which make a ``Ring`` for each pair: its memory and its way of completing frames.

``rings that complete on Sent`` (inproc, shm, cuda_ipc): the payload is in the slot when the source says so.
``rings with posted receives`` (gloo, tls): the ring calls ``on_arrived`` itself; a quarantined slot with a posted
receive is freed only then, since the transport still owns that memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.common.background import BackgroundTasks
from stratos.common.errors import Internal, Overloaded, WorkerLost
from stratos.core.device.payload import Payload
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.staging import SlotLedger, StagingState
from stratos.kv_transfer.transfer import FrameHeader, Receiver, StagedPayload, TransportOffer


@dataclass(slots=True, eq=False)
class Frame:
    """An announced frame."""

    header: FrameHeader
    arrived: bool = False
    failure: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, why: str) -> None:
        """Wake the waiters with an error."""
        self.failure = self.failure or why
        self.changed.set()


class Ring(ABC):
    """Staging memory of one pair."""

    address: str
    completes_on_sent: bool = True

    def start(self, on_arrived: OnArrived, on_broken: OnBroken) -> None:  # noqa: B027
        """The pair is known from here on: frames may be reported."""

    @abstractmethod
    def payload(self, slot: int, num_bytes: int) -> Payload | StagedPayload:
        """What is in a slot, where it lies, read-only."""

    def post(self, frame: Frame) -> None:  # noqa: B027
        """Expect a frame. Raises ``Internal`` when that breaks the transport's own rules."""

    @abstractmethod
    def close(self) -> asyncio.Future[Any] | None:
        """Drop the memory, at once; views that others still hold stay valid. Returns what ends later, if anything.

        May come without ``start``: the pair ended while its ring was made.
        """


OnArrived = Callable[[str, Frame], None]
"""Of a pair: the payload of a frame is complete."""
OnBroken = Callable[[str, str], None]
"""A pair has ended, and why."""


class Rings(ABC):
    """Makes the rings of one transport, in the process that has their memory."""

    @abstractmethod
    async def make(self, pair: str) -> Ring:
        """The memory of a new pair.

        Raises:
            Overloaded: there is none now.
            Internal: there never is, in this process.
        """

    def forget(self, ring: Ring) -> None:  # noqa: B027
        """The pair of this ring has ended."""

    async def close(self) -> None:  # noqa: B027
        """All rings are closed."""


@dataclass(slots=True, eq=False)
class _Pair:
    source: str
    offer: TransportOffer
    ring: Ring
    slots: SlotLedger
    frames: dict[int, Frame] = field(default_factory=dict)
    """By slot: announced, and not given back yet."""

    def find(self, leg: str, seq: int) -> Frame | None:
        for frame in self.frames.values():
            if frame.header.seq == seq and frame.header.leg == leg:
                return frame
        return None

    @property
    def is_stuck(self) -> bool:
        counts = self.slots.counts()
        return counts.quarantined == counts.total


class RingReceiver(Receiver):
    """``Receiver`` over one ``Ring`` per pair.

    Args:
        transport: its name.
        incarnation: of the receiving process.
        config: number and size of slots.
        rings: make the memory; closed with this receiver.
    """

    def __init__(self, transport: str, incarnation: str, config: StagingConfig, rings: Rings) -> None:
        if config.slot_bytes < 1 or config.max_pairs < 1:
            raise ValueError("slot_bytes and max_pairs must be positive")
        self.transport = transport
        self._incarnation = incarnation
        self._config = config
        self._rings = rings
        self._pairs: dict[str, _Pair] = {}
        self._by_source: dict[str, str] = {}
        self._generation = 0
        self._opening = asyncio.Lock()
        self._closing = BackgroundTasks()
        self._closed = False

    async def open_pair(self, source_incarnation: str) -> TransportOffer:
        async with self._opening:
            if self._closed:
                raise WorkerLost("this receiver is closed")
            known = self._pairs.get(self._by_source.get(source_incarnation, ""))
            if known is not None:
                if not known.is_stuck:
                    return known.offer
                self._end_pair(known, "replaced: all of its slots were in quarantine")
            self._make_room()
            return await self._open(source_incarnation)

    def allocate_slots(self, pair: str, want: int, *, leg: str) -> list[int]:
        found = self._pairs.get(pair)
        return found.slots.allocate(want, leg) if found else []

    def slots_of(self, pair: str, leg: str) -> list[int]:
        found = self._pairs.get(pair)
        return found.slots.slots_of(leg, StagingState.GRANTED) if found else []

    def post(self, pair: str, header: FrameHeader) -> None:
        found = self._require(pair)
        frame = Frame(header)
        _check_header(found, header)
        again = found.find(header.leg, header.seq)
        if again is not None and again.header.slot != header.slot:
            # A repeat in another slot: the first one's slot stays granted, without a frame.
            del found.frames[again.header.slot]
        found.frames[header.slot] = frame
        # Posted also for a slot in quarantine: an announced frame is always sent, and over a transport with posted
        # receives the slot can be settled only when that receive is complete.
        if found.slots.state(header.slot) is StagingState.QUARANTINED:
            frame.fail("the hand-off was given up")
        found.ring.post(frame)

    async def wait(self, pair: str, leg: str, seq: int, *, timeout_s: float) -> Payload | StagedPayload:
        found = self._require(pair)
        frame = found.find(leg, seq)
        if frame is None:
            raise ValueError(f"frame {seq} of leg {leg} was not posted")
        try:
            async with asyncio.timeout(timeout_s):
                await frame.changed.wait()
        except TimeoutError:
            raise WorkerLost(f"frame {seq} of leg {leg} did not arrive in {timeout_s:g} s") from None
        if frame.failure:
            raise WorkerLost(f"frame {seq} of leg {leg} will not arrive: {frame.failure}")
        return found.ring.payload(frame.header.slot, frame.header.num_bytes)

    def notify_sent(self, pair: str, leg: str, seq: int) -> None:
        found = self._pairs.get(pair)
        frame = found.find(leg, seq) if found else None
        if found and frame and found.ring.completes_on_sent:
            self._arrived(found, frame)

    def recycle_slot(self, pair: str, slot: int) -> None:
        found = self._pairs.get(pair)
        if found:
            _forget_frame(found, slot)

    def release_slot(self, pair: str, slot: int) -> None:
        found = self._pairs.get(pair)
        if found:
            _forget_frame(found, slot)
            found.slots.release(slot)

    def quarantine(self, pair: str, slots: Sequence[int], *, leg: str) -> None:
        found = self._pairs.get(pair)
        if not found:
            return
        found.slots.quarantine(slots, leg)
        for slot in slots:
            if (frame := found.frames.get(slot)) is not None:
                frame.fail("the hand-off was given up")

    def settle(self, pair: str, leg: str) -> None:
        found = self._pairs.get(pair)
        if not found:
            return
        for slot in found.slots.slots_of(leg, StagingState.QUARANTINED):
            frame = found.frames.get(slot)
            # The source says that it sends no more.  In shared memory that is the end of its writes; a posted
            # receive, though, may still be writing what is on the wire, so its slot waits for ``_arrived``.
            if frame is None or frame.arrived or found.ring.completes_on_sent:
                found.frames.pop(slot, None)
                found.slots.settle(slot)

    def end_incarnation(self, source_incarnation: str) -> None:
        found = self._pairs.get(self._by_source.get(source_incarnation, ""))
        if found:
            self._end_pair(found, "its source is gone")

    def ledger(self) -> StagingLedger:
        total = StagingLedger()
        for pair in self._pairs.values():
            total += pair.slots.counts()
        total.check()
        return total

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            for pair in list(self._pairs.values()):
                self._end_pair(pair, "the receiver closed")
            await self._closing.close()
            await self._rings.close()

    def _on_arrived(self, pair: str, frame: Frame) -> None:
        """For rings with posted receives: the payload of a frame is complete."""
        found = self._pairs.get(pair)
        if found and found.frames.get(frame.header.slot) is frame:
            self._arrived(found, frame)

    def _on_broken(self, pair: str, why: str) -> None:
        """For rings that can break: ends the pair."""
        found = self._pairs.get(pair)
        if found:
            self._end_pair(found, why)

    def _arrived(self, pair: _Pair, frame: Frame) -> None:
        frame.arrived = True
        frame.changed.set()
        slot = frame.header.slot
        if pair.slots.state(slot) is StagingState.QUARANTINED:
            del pair.frames[slot]
            pair.slots.settle(slot)

    async def _open(self, source: str) -> TransportOffer:
        config = self._config
        self._generation += 1
        name = f"{source}>{self._incarnation}#{self._generation}"
        slots = SlotLedger(config.slots_per_pair)
        ring = await self._rings.make(name)
        offer = TransportOffer(
            transport=self.transport,
            pair=name,
            address=ring.address,
            slot_bytes=config.slot_bytes,
            num_slots=config.slots_per_pair,
        )
        self._pairs[name] = _Pair(source, offer, ring, slots)
        self._by_source[source] = name
        ring.start(self._on_arrived, self._on_broken)
        return offer

    def _make_room(self) -> None:
        if len(self._pairs) < self._config.max_pairs:
            return
        for pair in self._pairs.values():
            if pair.slots.counts().free == self._config.slots_per_pair:
                self._end_pair(pair, "idle, and another source needed the room")
                return
        raise Overloaded(f"all {self._config.max_pairs} KV transfer pairs are in use; raise max_pairs")

    def _end_pair(self, pair: _Pair, why: str) -> None:
        del self._pairs[pair.offer.pair]
        del self._by_source[pair.source]
        for frame in pair.frames.values():
            if not frame.arrived:
                frame.fail(why)
        self._rings.forget(pair.ring)
        closing = pair.ring.close()
        if closing is not None and not closing.done():
            self._closing.own(closing)

    def _require(self, pair: str) -> _Pair:
        found = self._pairs.get(pair)
        if found is None:
            raise WorkerLost(f"the KV transfer pair {pair} has ended")
        return found


def _check_header(pair: _Pair, header: FrameHeader) -> None:
    offer = pair.offer
    what = f"frame {header.seq} of leg {header.leg}"
    if not 0 <= header.slot < offer.num_slots or pair.slots.leg(header.slot) != header.leg:
        raise Internal(f"{what} was announced for slot {header.slot}, which is not granted to its leg")
    if not 0 < header.num_bytes <= offer.slot_bytes:
        raise Internal(f"{what} has {header.num_bytes} bytes; a slot has {offer.slot_bytes}")
    again = pair.find(header.leg, header.seq)
    if again is not None and not again.arrived:
        raise Internal(f"{what} was announced twice")
    if pair.frames.get(header.slot) not in (None, again):
        raise Internal(f"{what} was announced for slot {header.slot}, which still holds another frame")


def _forget_frame(pair: _Pair, slot: int) -> None:
    if pair.slots.state(slot) is not StagingState.GRANTED:
        raise ValueError(f"staging slot {slot} is {pair.slots.state(slot).value}, not granted")
    frame = pair.frames.get(slot)
    if frame is not None and not frame.arrived:
        raise ValueError(f"staging slot {slot} has a frame under way; quarantine it")
    pair.frames.pop(slot, None)
