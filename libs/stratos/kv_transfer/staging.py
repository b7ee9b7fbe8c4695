"""Slot ledger of one staging ring: free -> granted(leg) -> free, or granted -> quarantined(leg) -> free.

Owns which leg may write which slot.  It holds no memory and knows no transport.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

from stratos.core.kv import StagingLedger


class StagingState(enum.Enum):
    """Which side may write a slot."""

    FREE = "free"
    GRANTED = "granted"
    QUARANTINED = "quarantined"


class SlotLedger:
    """State and leg of every slot of a ring; an illegal move raises ``ValueError`` and changes nothing."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a staging ring needs at least one slot, not {num_slots}")
        self._states = [StagingState.FREE] * num_slots
        self._legs = [""] * num_slots

    def allocate(self, want: int, leg: str) -> list[int]:
        """Grant free slots to ``leg``: at least one, at most half of the free ones, so that the next leg finds one."""
        free = [slot for slot, state in enumerate(self._states) if state is StagingState.FREE]
        # Wanted 4 each:  8 free -> 4,  4 free -> 2,  2 free -> 1,  1 free -> 1,  none free -> none
        taken = free[: min(want, (len(free) + 1) // 2)] if want > 0 else []
        for slot in taken:
            self._states[slot] = StagingState.GRANTED
            self._legs[slot] = leg
        return taken

    def release(self, slot: int) -> None:
        """Granted -> free."""
        self._expect(slot, StagingState.GRANTED)
        self._free(slot)

    def quarantine(self, slots: Sequence[int], leg: str) -> None:
        """Granted -> quarantined; all of them must be granted to ``leg``."""
        for slot in slots:
            self._expect(slot, StagingState.GRANTED)
            if self._legs[slot] != leg:
                raise ValueError(f"staging slot {slot} belongs to leg {self._legs[slot]}, not {leg}")
        for slot in slots:
            self._states[slot] = StagingState.QUARANTINED

    def settle(self, slot: int) -> None:
        """Quarantined -> free."""
        self._expect(slot, StagingState.QUARANTINED)
        self._free(slot)

    def state(self, slot: int) -> StagingState:
        self._expect_known(slot)
        return self._states[slot]

    def leg(self, slot: int) -> str:
        """Leg that the slot is granted to or quarantined for; empty for a free one."""
        self._expect_known(slot)
        return self._legs[slot]

    def slots_of(self, leg: str, state: StagingState) -> list[int]:
        """Slots of a leg in one state."""
        return [slot for slot, s in enumerate(self._states) if s is state and self._legs[slot] == leg]

    def counts(self) -> StagingLedger:
        """Counts, law checked."""
        counted = Counter(self._states)
        ledger = StagingLedger(
            total=len(self._states),
            free=counted[StagingState.FREE],
            granted=counted[StagingState.GRANTED],
            quarantined=counted[StagingState.QUARANTINED],
        )
        ledger.check_law()
        return ledger

    def _free(self, slot: int) -> None:
        self._states[slot] = StagingState.FREE
        self._legs[slot] = ""

    def _expect_known(self, slot: int) -> None:
        if not 0 <= slot < len(self._states):
            raise ValueError(f"there is no staging slot {slot}: the ring has {len(self._states)}")

    def _expect(self, slot: int, state: StagingState) -> None:
        self._expect_known(slot)
        if self._states[slot] is not state:
            raise ValueError(f"staging slot {slot} is {self._states[slot].value}, not {state.value}")
