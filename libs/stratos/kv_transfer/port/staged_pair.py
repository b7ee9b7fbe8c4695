"""One pair at its receiver: which leg may write which of its slots, and which frames were announced for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos.common.errors import Internal
from stratos.kv_transfer.staging import SlotLedger, StagingState
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer

_GIVEN_UP = "the hand-off was given up"


@dataclass(slots=True, eq=False)
class AnnouncedFrame:
    """A frame whose payload is in its slot, or will be."""

    header: FrameHeader
    arrived: bool = False
    failure: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, why: str) -> None:
        """Wake the waiters with an error."""
        self.failure = self.failure or why
        self.changed.set()


class StagedPair:
    """Slot ledger and frames of one pair.

    Args:
        source: incarnation of the sending process.
        offer: names the pair.
        completes_on_sent: as of its ring.
        slots: its ledger.
    """

    def __init__(self, source: str, offer: TransportOffer, *, completes_on_sent: bool, slots: SlotLedger) -> None:
        self.source, self.offer, self.completes_on_sent, self.slots = source, offer, completes_on_sent, slots
        self.is_used = True
        """A hand-off has had it since the last look for pairs that none needs."""
        self._frames: dict[int, AnnouncedFrame] = {}
        """By slot: announced, and not given back yet."""

    def find_frame(self, leg: str, seq: int) -> AnnouncedFrame | None:
        """A frame of a leg, wherever it lies."""
        for frame in self._frames.values():
            if frame.header.seq == seq and frame.header.leg == leg:
                return frame
        return None

    @property
    def is_stuck(self) -> bool:
        """All slots are in quarantine."""
        counts = self.slots.counts()
        return counts.quarantined == counts.total

    @property
    def is_idle(self) -> bool:
        """All slots are free."""
        counts = self.slots.counts()
        return counts.free == counts.total

    def add_frame(self, header: FrameHeader) -> None:
        """Note an announced frame. Raises ``Internal`` when the header breaks the protocol."""
        again = self._check_header(header)
        if again is not None and again.header.slot != header.slot:
            # A repeat in another slot: the first one's slot stays granted, without a frame.
            del self._frames[again.header.slot]
        frame = self._frames[header.slot] = AnnouncedFrame(header)
        if self.slots.state(header.slot) is StagingState.QUARANTINED:
            frame.fail(_GIVEN_UP)

    def complete_frame(self, leg: str, seq: int) -> None:
        """The payload is in its slot; unknown frames are ignored."""
        if (frame := self.find_frame(leg, seq)) is None:
            return
        frame.arrived = True
        frame.changed.set()
        slot = frame.header.slot
        if self.slots.state(slot) is StagingState.QUARANTINED:
            del self._frames[slot]
            self.slots.settle(slot)

    def forget_frame(self, slot: int) -> None:
        """The frame in a granted slot was read. Raises ``ValueError`` if it is not complete."""
        if self.slots.state(slot) is not StagingState.GRANTED:
            raise ValueError(f"staging slot {slot} is {self.slots.state(slot).value}, not granted")
        frame = self._frames.get(slot)
        if frame is not None and not frame.arrived:
            raise ValueError(f"staging slot {slot} has a frame under way; quarantine it")
        self._frames.pop(slot, None)

    def quarantine(self, slots: Sequence[int], leg: str) -> None:
        """Granted -> quarantined; waits for frames in these slots raise."""
        self.slots.quarantine(slots, leg)
        for slot in slots:
            if (frame := self._frames.get(slot)) is not None:
                frame.fail(_GIVEN_UP)

    def settle(self, leg: str) -> None:
        """Quarantined -> free, where nothing can be written any more."""
        for slot in self.slots.slots_of(leg, StagingState.QUARANTINED):
            frame = self._frames.get(slot)
            # The source sends no more.  In shared memory that is the end of its writes; a posted receive, though, may
            # still be writing what is on the wire, so its slot waits for ``complete_frame``.
            if frame is None or frame.arrived or self.completes_on_sent:
                self._frames.pop(slot, None)
                self.slots.settle(slot)

    def end(self, why: str) -> None:
        """Waits for frames that have not arrived raise."""
        for frame in self._frames.values():
            if not frame.arrived:
                frame.fail(why)

    def _check_header(self, header: FrameHeader) -> AnnouncedFrame | None:
        """Raise ``Internal``, or return the frame that this one repeats."""
        offer, what = self.offer, f"frame {header.seq} of leg {header.leg}"
        if not 0 <= header.slot < offer.num_slots or self.slots.leg(header.slot) != header.leg:
            raise Internal(f"{what} was announced for slot {header.slot}, which is not granted to its leg")
        if not 0 < header.num_bytes <= offer.slot_bytes:
            raise Internal(f"{what} has {header.num_bytes} bytes; a slot has {offer.slot_bytes}")
        again = self.find_frame(header.leg, header.seq)
        if again is not None and not again.arrived:
            raise Internal(f"{what} was announced twice")
        if self._frames.get(header.slot) not in (None, again):
            raise Internal(f"{what} was announced for slot {header.slot}, which still holds another frame")
        return again
