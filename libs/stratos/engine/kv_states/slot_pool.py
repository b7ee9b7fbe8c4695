"""Slots for recurrent states: free, held, or a snapshot that the prefix cache may give out.

    FREE ──take──▶ HELD ──release──▶ FREE
    HELD ──publish──▶ SNAPSHOT ◀──hold, release──▶ HELD;  SNAPSHOT ──evicted by take, or drop──▶ FREE

A snapshot belongs to the hash of a block.  One that nothing holds is idle, and makes room, the longest unused first.
"""

from __future__ import annotations

from collections.abc import Iterable


class SlotPool:
    """Holders and hashes of ``num_slots`` slots; guarded by the core's lock."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._holders = [0] * num_slots
        self._slot_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle: dict[int, None] = {}
        """Snapshots without a holder, the longest unused first."""

    @property
    def num_available(self) -> int:
        """Slots that ``take`` could hand out now."""
        return len(self._free) + len(self._idle)

    @property
    def num_snapshots(self) -> int:
        return len(self._slot_of)

    def find(self, block_hash: bytes) -> int | None:
        """The snapshot at the end of a block."""
        return self._slot_of.get(block_hash)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` slots, with one holder each; all or nothing."""
        if count > self.num_available:
            return None
        taken = []
        for _ in range(count):
            if not self._free:
                self._forget(next(iter(self._idle)))
            slot = self._free.pop()
            self._holders[slot] = 1
            taken.append(slot)
        return taken

    def hold(self, slot: int) -> None:
        """Add a holder to a snapshot, or to a slot that has one."""
        assert self._holders[slot] or slot in self._idle, f"slot {slot} holds nothing"
        self._idle.pop(slot, None)
        self._holders[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """Take one holder from each slot; a snapshot stays, and is the last to make room."""
        for slot in slots:
            assert self._holders[slot] > 0, f"slot {slot} released twice"
            self._holders[slot] -= 1
            if self._holders[slot]:
                continue
            if slot in self._hash_of:
                self._idle[slot] = None
            else:
                self._free.append(slot)

    def publish(self, block_hash: bytes, slot: int) -> None:
        """Let a held slot be the snapshot of a hash, where there is none; its holder is gone then."""
        if block_hash not in self._slot_of:
            self._slot_of[block_hash], self._hash_of[slot] = slot, block_hash
        self.release([slot])

    def drop(self, block_hash: bytes) -> None:
        """The block is in the cache no more: its snapshot ends, as soon as nothing holds it."""
        slot = self._slot_of.get(block_hash)
        if slot is None:
            return
        if slot in self._idle:
            self._forget(slot)
        else:
            del self._slot_of[block_hash], self._hash_of[slot]

    def verify(self) -> None:
        """Recount; raises ``AssertionError`` where something is off."""
        held = {slot for slot, count in enumerate(self._holders) if count}
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a slot is free twice"
        assert len(held) + len(free) + len(idle) == self.num_slots, "slots are counted wrong"
        assert held | free | idle == set(range(self.num_slots)), "a slot is in two states"
        assert {slot: name for name, slot in self._slot_of.items()} == self._hash_of
        assert idle == set(self._hash_of) - held, "an idle slot is no snapshot"

    def _forget(self, idle: int) -> None:
        del self._idle[idle], self._slot_of[self._hash_of.pop(idle)]
        self._free.append(idle)
