"""Receiving end of a transport as a worker has it: pairs, credits for their slots, announced frames and their waiters.

The slots' memory is at the data port.  A frame is complete with ``Sent`` where the ring completes on it, else with the
event ``FrameArrived``; there a quarantined slot with an announced frame is freed only then, since the transport still
owns that memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratos.common.errors import Overloaded, WorkerLost
from stratos.core.kv import StagingLedger
from stratos.kv_transfer.port.base import DataPort, OpenedRing
from stratos.kv_transfer.port.staged_pair import StagedPair
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.staging import SlotLedger, StagingState
from stratos.kv_transfer.transfer import FrameArrived, FrameHeader, PortEvent, TransportOffer


class StagingSlots:
    """Slots of all pairs of one transport, at their receiver: which leg may write which of them.

    A pair may end at any time (its source is gone, the transport broke).  From then on ``open_pair`` makes another
    one; for the old name ``allocate_slots`` returns ``[]``, ``announce_frame`` and ``wait_arrived`` raise
    ``WorkerLost``, and the calls that give slots back are ignored.

    Args:
        transport: its name.
        incarnation: of the receiving process.
        config: number and size of slots.
        port: has their memory.
    """

    def __init__(self, transport: str, incarnation: str, config: StagingConfig, port: DataPort) -> None:
        if config.slot_bytes < 1 or config.max_pairs < 1:
            raise ValueError("slot_bytes and max_pairs must be positive")
        self.transport = transport
        self._incarnation, self._config, self._port = incarnation, config, port
        self._pairs: dict[str, StagedPair] = {}
        self._by_source: dict[str, str] = {}
        self._generation = 0
        self._opening = asyncio.Lock()
        self._unopened = ""
        """Pair whose ring is being opened."""
        self._broken_early: str | None = None
        """Why it ended, if that came together with the answer to the call that opened the ring."""
        self._closed = False
        port.subscribe(self._on_event)

    # -- credits -----------------------------------------------------------------------------------

    async def open_pair(self, source_incarnation: str) -> TransportOffer:
        """The pair of this source, made on first use.

        A pair that broke, or that has nothing left but quarantined slots, is replaced.

        Raises:
            Overloaded: no memory for a ring, or too many pairs and none of them is idle.
            Internal: this transport makes no ring in the port's process, now or later.
        """
        async with self._opening:
            if self._closed:
                raise WorkerLost("this receiver is closed")
            known = self._pairs.get(self._by_source.get(source_incarnation, ""))
            if known is not None:
                if not known.is_stuck:
                    known.is_used = True
                    return known.offer
                self._end_pair(known, "replaced: all of its slots were in quarantine")
            self._make_room()
            return await self._open(source_incarnation)

    def allocate_slots(self, pair: str, want: int, *, leg: str) -> list[int]:
        """Grant up to ``want`` free slots to ``leg``: at least one, at most half of the free ones (rounded up).

        ``[]`` when none is free: the hand-off must not be granted.
        """
        found = self._pairs.get(pair)
        return found.slots.allocate(want, leg) if found else []

    def slots_of(self, pair: str, leg: str) -> list[int]:
        """Slots granted to ``leg``; neither free nor quarantined."""
        found = self._pairs.get(pair)
        return found.slots.slots_of(leg, StagingState.GRANTED) if found else []

    def recycle_slot(self, pair: str, slot: int) -> None:
        """The frame in a slot was read; the slot stays with its leg, and a credit for it may be sent."""
        if found := self._pairs.get(pair):
            found.forget_frame(slot)

    def release_slot(self, pair: str, slot: int) -> None:
        """Give a slot back.

        Raises:
            ValueError: its frame is announced and not complete: the source may still write. Quarantine it.
        """
        if found := self._pairs.get(pair):
            found.forget_frame(slot)
            found.slots.release(slot)

    def quarantine(self, pair: str, slots: Sequence[int], *, leg: str) -> None:
        """Keep granted slots from all legs: the source may still write them. Open waits for them raise."""
        if found := self._pairs.get(pair):
            found.quarantine(slots, leg)

    def settle(self, pair: str, leg: str) -> None:
        """``AbortAck`` arrived: nothing of ``leg`` is under way any more; its quarantined slots become free."""
        if found := self._pairs.get(pair):
            found.settle(leg)

    def ledger(self) -> StagingLedger:
        """Counts over all open pairs, law checked."""
        total = sum((pair.slots.counts() for pair in self._pairs.values()), StagingLedger())
        total.check_law()
        return total

    # -- frames ------------------------------------------------------------------------------------

    def announce_frame(self, pair: str, header: FrameHeader) -> None:
        """Expect an announced frame. Must be called for every header, also after an abort.

        Raises:
            Internal: the peer broke the protocol (slot not granted to its leg, in use, or too small; repeated seq).
            WorkerLost: the pair has ended.
        """
        found = self._require(pair)
        found.add_frame(header)
        # Also for a slot in quarantine: an announced frame is always sent, and over a transport with posted receives
        # the slot can be settled only when that receive is complete.
        if not found.completes_on_sent:
            self._port.announce_frame(pair, header)

    async def wait_arrived(self, pair: str, leg: str, seq: int, *, timeout_s: float) -> None:
        """Wait until an announced frame is complete in its slot, where it lies until the slot is given back.

        Raises:
            WorkerLost: not complete in time (the slot stays granted: quarantine it), the pair ended, or the slot was
                quarantined during the wait.
        """
        frame = self._require(pair).find_frame(leg, seq)
        if frame is None:
            raise ValueError(f"frame {seq} of leg {leg} was not posted")
        try:
            async with asyncio.timeout(timeout_s):
                await frame.changed.wait()
        except TimeoutError:
            raise WorkerLost(f"frame {seq} of leg {leg} did not arrive in {timeout_s:g} s") from None
        if frame.failure:
            raise WorkerLost(f"frame {seq} of leg {leg} will not arrive: {frame.failure}")

    def notify_sent(self, pair: str, leg: str, seq: int) -> None:
        """``Sent`` arrived. Settles the frame's slot if that is quarantined; unknown frames are ignored."""
        found = self._pairs.get(pair)
        if found and found.completes_on_sent:
            found.complete_frame(leg, seq)

    def _on_event(self, event: PortEvent) -> None:
        """Take notice of an event of the port, where other transports have pairs too."""
        found = self._pairs.get(event.pair)
        if isinstance(event, FrameArrived):
            if found:
                found.complete_frame(event.leg, event.seq)
            return
        if self._unopened and event.pair in ("", self._unopened):
            self._broken_early = event.why
        for pair in list(self._pairs.values()) if not event.pair else [found] if found else []:
            self._end_pair(pair, event.why)

    # -- life of a pair ----------------------------------------------------------------------------

    def end_incarnation(self, source_incarnation: str) -> None:
        """Drop the pair of a source, slots and all. Unknown sources are ignored."""
        found = self._pairs.get(self._by_source.get(source_incarnation, ""))
        if found:
            self._end_pair(found, "its source is gone")

    def end_idle(self) -> None:
        """Drop the pairs that no leg has had since the last call."""
        for pair in list(self._pairs.values()):
            if pair.is_idle and not pair.is_used:
                self._end_pair(pair, "no hand-off needed it for a while")
            pair.is_used = not pair.is_idle

    async def close(self) -> None:
        """End all pairs."""
        async with self._opening:
            self._closed = True
            for pair in list(self._pairs.values()):
                self._end_pair(pair, "the receiver closed")

    async def _open(self, source: str) -> TransportOffer:
        config, slots = self._config, SlotLedger(self._config.slots_per_pair)
        self._generation += 1
        name = f"{source}>{self._incarnation}#{self.transport}-{self._generation}"
        opened = await self._open_ring(name)
        offer = TransportOffer(
            transport=self.transport,
            pair=name,
            address=opened.address,
            slot_bytes=config.slot_bytes,
            num_slots=config.slots_per_pair,
        )
        made = StagedPair(source, offer, completes_on_sent=opened.completes_on_sent, slots=slots)
        self._pairs[name], self._by_source[source] = made, name
        if self._broken_early is not None:
            self._end_pair(made, self._broken_early)
        return offer

    async def _open_ring(self, name: str) -> OpenedRing:
        self._unopened, self._broken_early = name, None
        try:
            return await self._port.open_ring(self.transport, name)
        except BaseException:  # the caller gave up, or it failed: either way no slots may stay
            self._port.end_ring(name)
            raise
        finally:
            self._unopened = ""

    def _make_room(self) -> None:
        if len(self._pairs) < self._config.max_pairs:
            return
        for pair in self._pairs.values():
            if pair.is_idle:
                self._end_pair(pair, "idle, and another source needed the room")
                return
        raise Overloaded(f"all {self._config.max_pairs} KV transfer pairs are in use; raise max_pairs")

    def _end_pair(self, pair: StagedPair, why: str) -> None:
        del self._pairs[pair.offer.pair]
        del self._by_source[pair.source]
        pair.end(why)
        self._port.end_ring(pair.offer.pair)

    def _require(self, pair: str) -> StagedPair:
        found = self._pairs.get(pair)
        if found is None:
            raise WorkerLost(f"the KV transfer pair {pair} has ended")
        return found
