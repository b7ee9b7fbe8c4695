"""The host pool under random calls, and the decision between copying and computing."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratos.common.clock import FakeClock
from stratos.engine.kv_cache.host_pool import HostPool
from stratos.engine.kv_cache.swap_costs import FORGET_S, SwapCosts, is_move_cheaper
from tests.support.examples import examples

NUM_SLOTS = 5


class HostPoolMachine(RuleBasedStateMachine):
    """Slots are filled, held, read by loads, found by hash and forgotten in any order."""

    def __init__(self):
        super().__init__()
        self.pool = HostPool(NUM_SLOTS)
        self.filling, self.reading, self.held = [], [], []
        self.content = {}

    def hashes(self):
        return st.sampled_from([bytes([i]) * 32 for i in range(8)])

    @rule(data=st.data(), has_hash=st.booleans())
    def take(self, data, has_hash):
        block_hash = data.draw(self.hashes()) if has_hash else None
        if block_hash is not None and self.pool.find(block_hash) is not None:
            return
        available, slot = self.pool.num_available, self.pool.allocate(block_hash)
        assert (slot is None) == (available == 0)
        if slot is not None:
            assert slot not in self.filling + self.reading + self.held, "a slot in use was handed out"
            self.filling.append(slot)
            self.content[slot] = block_hash

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), is_valid=st.booleans())
    def end_fill(self, data, is_valid):
        slot = data.draw(st.sampled_from(self.filling))
        self.filling.remove(slot)
        self.pool.end_move(slot, is_valid=is_valid)
        if not is_valid:
            assert self.pool.find(self.content[slot] or b"") != slot

    @rule(data=st.data(), is_load=st.booleans())
    def use(self, data, is_load):
        slot = self.pool.find(data.draw(self.hashes()))
        if slot is None or self.pool.is_filling(slot):
            return
        (self.pool.begin_move if is_load else lambda s: self.pool.hold([s]))(slot)
        (self.reading if is_load else self.held).append(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        slot = data.draw(st.sampled_from(self.held))
        self.held.remove(slot)
        self.pool.release([slot])

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def end_read(self, data):
        slot = data.draw(st.sampled_from(self.reading))
        self.reading.remove(slot)
        self.pool.end_move(slot)

    @rule(data=st.data())
    def forget(self, data):
        block_hash = data.draw(self.hashes())
        is_known = self.pool.find(block_hash) is not None
        assert self.pool.forget([block_hash]) == is_known
        assert self.pool.find(block_hash) is None

    @invariant()
    def law(self):
        self.pool.verify()
        ledger = self.pool.ledger()
        moving = set(self.filling + self.reading)
        assert ledger.moving == len(moving)
        assert ledger.held == len(set(self.held) - moving)
        for block_hash in (bytes([i]) * 32 for i in range(8)):
            slot = self.pool.find(block_hash)
            assert slot is None or self.content[slot] == block_hash, "a hash leads to other content"


TestHostPool = HostPoolMachine.TestCase
TestHostPool.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_the_least_recently_used_slot_goes_first_and_a_held_one_never():
    pool = HostPool(3)
    a, b, c = (pool.allocate(bytes([i]) * 32) for i in range(3))
    for slot in (a, b, c):
        pool.end_move(slot)
    pool.hold([a])
    pool.release([a])
    pool.hold([c])
    assert [pool.allocate(None), pool.allocate(None), pool.allocate(None)] == [b, a, None]


def test_moving_is_cheaper_exactly_when_the_measured_rates_say_so():
    assert is_move_cheaper(1000, 10, bytes_per_s=1000.0, tokens_per_s=4.9, num_moves=2)
    assert not is_move_cheaper(1000, 10, bytes_per_s=1000.0, tokens_per_s=5.1, num_moves=2)
    assert is_move_cheaper(1000, 10, bytes_per_s=1000.0, tokens_per_s=5.1, num_moves=1)
    assert is_move_cheaper(1000, 10, None, 1e9, 2)
    assert is_move_cheaper(1000, 10, 1e-9, None, 2)


def test_rates_follow_what_is_measured():
    costs = SwapCosts(block_bytes=1000, block_size=4, clock=FakeClock())
    assert costs.is_swap_worth(100)
    costs.observe_copies(num_blocks=2, seconds=1.0)
    costs.observe_prefill(num_prompt_tokens=3, num_tokens=100, seconds=1.0)
    assert costs.tokens_per_s is None, "a step of decodes says nothing about prefill"
    costs.observe_prefill(num_prompt_tokens=60, num_tokens=100, seconds=1.0)
    assert (costs.bytes_per_s, costs.tokens_per_s) == (2000.0, 100.0)
    assert not costs.is_swap_worth(100)
    for _ in range(60):
        costs.observe_copies(num_blocks=100, seconds=1.0)
    assert costs.bytes_per_s == pytest.approx(100_000, rel=1e-3)
    assert costs.is_swap_worth(100)
    assert costs.is_load_worth(1)
    costs.observe_copies(num_blocks=1, seconds=0.0)
    assert costs.bytes_per_s == pytest.approx(100_000, rel=1e-3)


def test_a_rate_that_was_not_measured_lately_does_not_decide():
    clock = FakeClock()
    costs = SwapCosts(block_bytes=1000, block_size=4, clock=clock)

    def compute(tokens_per_s):
        costs.observe_prefill(num_prompt_tokens=100, num_tokens=100, seconds=100 / tokens_per_s)

    compute(1000.0)
    costs.observe_copies(num_blocks=1, seconds=1.0)  # into memory that was never touched
    assert not costs.is_keep_worth()
    clock.advance(FORGET_S - 1)
    compute(1000.0)
    assert not costs.is_keep_worth()
    clock.advance(1)
    assert costs.bytes_per_s is None
    assert costs.is_keep_worth(), "tried again"
    costs.observe_copies(num_blocks=1000, seconds=1.0)
    assert costs.bytes_per_s == 1_000_000, "nothing of the old rate is left"
    assert costs.is_keep_worth()
    compute(1e6)
    for _ in range(9):
        clock.advance(FORGET_S / 2)
        compute(1e6)
        costs.observe_copies(num_blocks=1, seconds=1.0)
    assert 1000 < costs.bytes_per_s < 1_000_000, "smoothed as long as it is measured"
    assert not costs.is_keep_worth()
    clock.advance(FORGET_S)
    assert costs.tokens_per_s is None
    assert costs.is_swap_worth(100)
