"""Owner of the slots in host memory, the larger and slower tier of KV blocks: hashes, references, states.

    FREE ──allocate──▶ MOVING ──end_move──▶ HELD (referenced), CACHED (has a hash) or FREE
    CACHED ──hold──▶ HELD ──release──▶ CACHED or FREE,  CACHED ──evicted by allocate──▶ MOVING
    HELD ──begin_move (a load reads it)──▶ MOVING

A slot is MOVING while a copy writes or reads it; it is never given away then.  Hashes are those of the device
pool (``prefix_cache``), so one hash says what a block holds in either tier.  Least recently used slots go first, and
those with a pin (``pins``) after all others.
Ledger law: ``free + cached + held + moving == total``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from stratos.core.kv import HostLedger
from stratos.engine.kv_cache.pins import DropReason, EvictionOrder, Pin, TierPins


class SlotState(enum.Enum):
    """Use of a slot."""

    FREE = "free"
    CACHED = "cached"
    HELD = "held"
    MOVING = "moving"


class HostPool:
    """States of ``num_slots`` slots of one block each."""

    def __init__(self, num_slots: int, max_pinned_ratio: float = 0.0) -> None:
        self.num_slots = num_slots
        self.pins = TierPins(num_slots, max_pinned_ratio, lambda pin: pin.host_ratio)
        self.pins.on_change = self._note_pin
        self.on_change: Callable[[bytes], None] = lambda _: None
        """Told each hash that a slot got or lost."""
        self.num_evicted = 0
        """Cached slots whose content made room for other content."""
        self._free = list(range(num_slots - 1, -1, -1))
        self._cached = EvictionOrder()
        self._refs = [0] * num_slots
        self._moves = [0] * num_slots
        self._filling: set[int] = set()
        self._states = [SlotState.FREE] * num_slots
        self._counts = dict.fromkeys(SlotState, 0)
        self._counts[SlotState.FREE] = num_slots
        self._slot_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_available(self) -> int:
        """Slots that ``allocate`` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_unpinned(self) -> int:
        """Slots among them that take no pin."""
        return len(self._free) + self._cached.num_unpinned

    def find(self, block_hash: bytes) -> int | None:
        """The slot with this hash, filled or about to be."""
        return self._slot_of.get(block_hash)

    def hashes(self) -> Iterable[bytes]:
        """Every hash that a slot has."""
        return self._slot_of.keys()

    def hash_of(self, slot: int) -> bytes | None:
        return self._hash_of.get(slot)

    def is_filling(self, slot: int) -> bool:
        return slot in self._filling

    def allocate(self, block_hash: bytes | None) -> int | None:
        """A slot for a copy to fill, the least recently used one if none is free; ``None`` when all are in use."""
        if self._free:
            slot = self._free.pop()
        elif self._cached:
            slot = self._cached.pop()
            self._forget_slot(slot, "pressure")
            self.num_evicted += 1
        else:
            return None
        self._moves[slot] = 1
        self._set(slot, SlotState.MOVING)
        self._filling.add(slot)
        if block_hash is not None:
            self.name(slot, block_hash)
        return slot

    def name(self, slot: int, block_hash: bytes) -> None:
        """Let a slot that is being filled be found; it stays private where another one has the hash."""
        assert slot in self._filling
        if block_hash not in self._slot_of:
            self._slot_of[block_hash] = slot
            self._hash_of[slot] = block_hash
            self.on_change(block_hash)

    def pin(self, hashes: Sequence[bytes], pin: Pin) -> None:
        """Keep those blocks of a prompt that are here as long as a pin says."""
        here = [block_hash for block_hash in hashes if block_hash in self._slot_of] if self.pins.max_pins else []
        if not self.pins.renew(here, pin):
            self.pins.add(here, pin)

    def _note_pin(self, block_hash: bytes, is_pinned: bool) -> None:
        slot = self._slot_of.get(block_hash)
        if slot is not None:
            self._cached.note_pin(slot, is_pinned)

    def hold(self, slots: Iterable[int]) -> None:
        """Add a reference: the content stays."""
        for slot in slots:
            assert self._states[slot] is not SlotState.FREE
            self._refs[slot] += 1
            self._update_state(slot)

    def release(self, slots: Iterable[int]) -> None:
        """Take a reference back."""
        for slot in slots:
            assert self._refs[slot] > 0, f"slot {slot} released twice"
            self._refs[slot] -= 1
            self._update_state(slot)

    def begin_move(self, slot: int) -> None:
        """A copy is going to read the slot."""
        assert self._states[slot] is not SlotState.FREE
        self._moves[slot] += 1
        self._update_state(slot)

    def end_move(self, slot: int, *, is_valid: bool = True) -> None:
        """A copy has ended; a copy that filled the slot and failed leaves nothing to be found."""
        assert self._moves[slot] > 0
        self._moves[slot] -= 1
        if not is_valid:
            self._forget_slot(slot)
        if self._moves[slot] == 0:
            self._filling.discard(slot)
        self._update_state(slot)

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Take hashes away; held and moving content stays for its owners. Returns how many were known."""
        slots = [slot for slot in (self._slot_of.get(block_hash) for block_hash in hashes) if slot is not None]
        for slot in slots:
            self._forget_slot(slot)
            self._update_state(slot)
        return len(slots)

    def ledger(self) -> HostLedger:
        return HostLedger(total=self.num_slots, **{state.value: count for state, count in self._counts.items()})

    def verify(self) -> None:
        """Recount everything from scratch and raise ``AssertionError`` where an invariant is off."""
        self.ledger().check_law()
        for state, count in self._counts.items():
            assert self._states.count(state) == count, f"{state} is counted {count} times"
        assert len(self._free) == len(set(self._free))
        assert set(self._free) == {s for s, state in enumerate(self._states) if state is SlotState.FREE}
        cached = self._cached.blocks()
        assert cached == {s for s, state in enumerate(self._states) if state is SlotState.CACHED}
        self.pins.verify(self._slot_of.__contains__)
        assert {s for s in cached if self._hash_of[s] in self.pins} == self._cached.pinned
        assert self._hash_of == {slot: block_hash for block_hash, slot in self._slot_of.items()}
        for slot, state in enumerate(self._states):
            assert state is self._state_now(slot), f"slot {slot} is {state}"
            assert slot not in self._filling or self._moves[slot]

    def _state_now(self, slot: int) -> SlotState:
        if self._moves[slot]:
            return SlotState.MOVING
        if self._refs[slot]:
            return SlotState.HELD
        return SlotState.CACHED if slot in self._hash_of else SlotState.FREE

    def _update_state(self, slot: int) -> None:
        before, now = self._states[slot], self._state_now(slot)
        if before is now:
            return
        if before is SlotState.CACHED:
            self._cached.remove(slot)
        if now is SlotState.CACHED:
            self._cached.add(slot, is_pinned=self._hash_of[slot] in self.pins)
        elif now is SlotState.FREE:
            self._free.append(slot)
        self._set(slot, now)

    def _set(self, slot: int, state: SlotState) -> None:
        self._counts[self._states[slot]] -= 1
        self._counts[state] += 1
        self._states[slot] = state

    def _forget_slot(self, slot: int, reason: DropReason = "forgotten") -> None:
        block_hash = self._hash_of.pop(slot, None)
        if block_hash is not None:
            del self._slot_of[block_hash]
            self.pins.drop(block_hash, reason)
            self.on_change(block_hash)
