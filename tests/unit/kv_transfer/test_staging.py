"""The slot ledger: random histories against a model of which leg may write which slot."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.staging import SlotLedger, StagingState
from tests.support.examples import examples

LEGS = st.sampled_from(["a", "b", "c"])
SLOTS = st.integers(0, 5)


class SlotHistory(RuleBasedStateMachine):
    """Plays moves on a ledger of 6 slots and on a dict; both must agree after each."""

    def __init__(self):
        super().__init__()
        self.ledger = SlotLedger(6)
        self.model = dict.fromkeys(range(6), (StagingState.FREE, ""))

    def _in_state(self, state):
        return [slot for slot, (s, _) in self.model.items() if s is state]

    @rule(want=st.integers(-1, 8), leg=LEGS)
    def allocate(self, want, leg):
        free = self._in_state(StagingState.FREE)
        taken = self.ledger.allocate(want, leg)
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(free), "a slot that a source may still write was granted"
        assert len(taken) <= max(0, want)
        assert bool(taken) == bool(free and want > 0), "a leg gets at least one slot as long as one is free"
        if len(free) > 1:
            assert len(taken) < len(free), "the next leg finds none"
        for slot in taken:
            self.model[slot] = (StagingState.GRANTED, leg)

    @rule(slot=SLOTS)
    def release(self, slot):
        self._move(slot, StagingState.GRANTED, StagingState.FREE, lambda: self.ledger.release(slot))

    @rule(slot=SLOTS)
    def settle(self, slot):
        self._move(slot, StagingState.QUARANTINED, StagingState.FREE, lambda: self.ledger.settle(slot))

    @rule(slots=st.lists(SLOTS, unique=True, max_size=3), leg=LEGS)
    def quarantine(self, slots, leg):
        if all(self.model[slot] == (StagingState.GRANTED, leg) for slot in slots):
            self.ledger.quarantine(slots, leg)
            for slot in slots:
                self.model[slot] = (StagingState.QUARANTINED, leg)
        else:
            with pytest.raises(ValueError, match="staging slot"):
                self.ledger.quarantine(slots, leg)

    def _move(self, slot, before, after, act):
        if self.model[slot][0] is before:
            act()
            self.model[slot] = (after, "")
        else:
            with pytest.raises(ValueError, match="staging slot"):
                act()

    @invariant()
    def agrees_with_model(self):
        for slot, (state, leg) in self.model.items():
            assert (self.ledger.state(slot), self.ledger.leg(slot)) == (state, leg)
        counts = self.ledger.counts()
        assert counts.total == 6
        assert counts.free == len(self._in_state(StagingState.FREE))
        assert counts.quarantined == len(self._in_state(StagingState.QUARANTINED))


SlotHistory.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestSlotHistory = SlotHistory.TestCase


def test_a_slot_outside_of_the_ring_is_refused():
    ledger = SlotLedger(2)
    for slot in (-1, 2):
        with pytest.raises(ValueError, match="there is no staging slot"):
            ledger.state(slot)


def test_a_ring_without_slots_is_refused():
    with pytest.raises(ValueError, match="at least one slot"):
        SlotLedger(0)


def test_slots_follow_the_model_unless_they_are_set() -> None:
    small, large, huge = (StagingConfig().fitted(token_bytes) for token_bytes in (6 * 1024, 32 * 1024, 10 << 20))
    assert (small.slot_bytes, small.slots_per_pair) == (1 << 20, 16)
    assert (large.slot_bytes, large.slots_per_pair) == (128 * 32 * 1024, 16)
    assert (huge.slot_bytes, huge.slots_per_pair) == (16 << 20, 8)
    asked = StagingConfig(slot_bytes=4096, slots_per_pair=2)
    assert asked.fitted(32 * 1024) is asked
    assert StagingConfig(slots_per_pair=3).fitted(1).slots_per_pair == 3
