"""Pinned blocks: they outlive others, within a quota, until their time is over; live sequences always come first."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratos.common.clock import FakeClock
from stratos.core.requests.pins import (
    TTL_1H_S,
    TTL_5M_S,
    TTL_24H_S,
    Breakpoint,
    CacheWrites,
    PinnedSpan,
    PinTerms,
    cache_writes,
)
from stratos.core.requests.records import PrefillJob
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.host_pool import HostPool
from stratos.engine.kv_cache.pins import Pin
from tests.support.examples import examples
from tests.support.worlds.engine_driver import CROWDED, assert_at_rest, drain, drained_tokens, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

ALWAYS = scheduler_config(swap_costs=False, **CROWDED)
SIZE, NUM_BLOCKS, NUM_SLOTS = 4, 12, 6
PREFIX = list(range(100, 117))
FOUR_BLOCKS = (Breakpoint(16, TTL_5M_S),)


def pin(tenant="a", expires_s=1.0, ratio=0.34, priority_class=2):
    return Pin(
        tenant=tenant, ttl_s=TTL_5M_S, expires_s=expires_s, device_ratio=ratio, host_ratio=ratio,
        priority_class=priority_class,
    )  # fmt: skip


class PinnedBlocksMachine(RuleBasedStateMachine):
    """Random owners of both pools' blocks, random pins, and a clock."""

    def __init__(self):
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, SIZE, max_pinned_ratio=0.5)
        self.pool = HostPool(NUM_SLOTS, max_pinned_ratio=0.5)
        self.owned, self.held, self.hashes, self.now = [], [], 0, 0

    @rule(count=st.integers(1, NUM_BLOCKS))
    def allocate(self, count):
        """A live sequence gets every block that no other has, and pinned ones go last."""
        pins, available = self.blocks.cache.pins, NUM_BLOCKS - len({b for table in self.owned for b in table})
        num_plain = available - sum(self.is_idle(h) for h in self.blocks.cache.hashes() if h in pins)
        num_pressed = pins.dropped["pressure"]
        taken = self.blocks.allocate(count)
        assert (taken is not None) == (count <= available)
        if taken is not None:
            assert pins.dropped["pressure"] - num_pressed == max(0, count - num_plain)
            self.owned.append(taken)
            for block in taken:
                self.hashes += 1
                self.blocks.cache.insert(self.name(self.hashes), block)

    @rule()
    def fill_slot(self):
        self.hashes += 1
        slot = self.pool.allocate(self.name(self.hashes))
        assert (slot is None) == (len(self.held) == NUM_SLOTS), "pins keep no slot from a copy"
        if slot is not None:
            self.pool.end_move(slot)

    @precondition(lambda self: self.hashes)
    @rule(
        number=st.integers(0, 40), count=st.integers(1, 5), tenant=st.sampled_from("abc"), ttl=st.integers(1, 5),
        priority_class=st.integers(1, 3),
    )  # fmt: skip
    def pin(self, number, count, tenant, ttl, priority_class):
        first = max(1, self.hashes - number)
        names = [self.name(first + n) for n in range(count)]
        wish = pin(tenant, self.now + ttl, priority_class=priority_class)
        num_pinned = self.blocks.cache.pin(names, wish)
        assert all(name in self.blocks.cache.pins for name in names[:num_pinned])
        assert num_pinned == count or names[num_pinned] not in self.blocks.cache.pins
        self.pool.pin(names, wish)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data):
        table = data.draw(st.sampled_from(self.owned))
        self.owned.remove(table)
        self.blocks.release(table)

    @precondition(lambda self: self.hashes)
    @rule(number=st.integers(0, 40))
    def share(self, number):
        block_hash = self.name(max(1, self.hashes - number))
        if hit := self.blocks.cache.match([block_hash]):
            self.blocks.reference(hit)
            self.owned.append(hit)
        slot = self.pool.find(block_hash)
        if slot is not None and slot not in self.held:
            self.pool.hold([slot])
            self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule()
    def give_slot_back(self):
        self.pool.release([self.held.pop()])

    @precondition(lambda self: self.hashes)
    @rule(number=st.integers(0, 40))
    def forget(self, number):
        names = [self.name(max(1, self.hashes - number))]
        self.blocks.forget(names)
        self.pool.forget(names)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds):
        self.now += seconds
        for pins in (self.blocks.cache.pins, self.pool.pins):
            pins.expire(self.now)

    @invariant()
    def law(self):
        self.blocks.verify()
        self.pool.verify()
        for pins, quota in ((self.blocks.cache.pins, 4), (self.pool.pins, 2)):
            assert max(map(pins.count, "abc")) <= quota
            assert len(pins) <= pins.max_pins
            live = [pins.find(self.name(number)) for number in range(1, self.hashes + 1)]
            assert all(found.expires_s > self.now for found in live if found is not None)

    @staticmethod
    def name(number):
        return number.to_bytes(32, "little")

    def is_idle(self, block_hash):
        return not self.blocks.is_in_use(self.blocks.cache.find(block_hash))


TestPinnedBlocks = PinnedBlocksMachine.TestCase
TestPinnedBlocks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.fixture
def clock():
    return FakeClock()


def ask(engine, tenant, name, prompt=PREFIX, marks=(), ratio=0.5, **more):
    """Run a prompt of a tenant; returns its statistics."""
    terms = PinTerms(breakpoints=tuple(marks), device_ratio=ratio, host_ratio=ratio)
    engine.add(make_request(prompt, name, max_tokens=3, tenant=tenant, cache_salt=tenant.encode(), pins=terms, **more))
    run = drain(engine)
    assert run.tokens == {(name, 0): expected(prompt, 3)}
    return run.stats[name]


def press(engine, tag, rounds=3):
    """Another tenant fills the pool, more than once."""
    for number in range(rounds):
        ask(engine, "crowd", f"{tag}-{number}", [1000 + 50 * number + i for i in range(41)])


def dropped(engine):
    return Counter(engine.status().pins["device"].dropped)


def test_a_pinned_prefix_outlives_pressure_and_an_unpinned_one_does_not(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE)
    assert ask(engine, "keeps", "k", marks=FOUR_BLOCKS).num_pinned_tokens == 16
    assert ask(engine, "plain", "p").num_pinned_tokens == 0
    press(engine, "first")
    assert ask(engine, "plain", "p2").num_cached_tokens == 0, "control: the pool was full"
    assert ask(engine, "keeps", "k2").num_cached_tokens == 16
    assert engine.status().pins["device"].num_blocks == 4
    clock.advance(TTL_5M_S + 1)
    assert engine.status().pins["device"].num_blocks == 0, "told without a step"
    press(engine, "second")
    assert ask(engine, "keeps", "k3").num_cached_tokens == 0
    assert dropped(engine) == {"expired": 4}
    assert_at_rest(engine)


def test_each_use_begins_the_time_again_and_a_shorter_one_cuts_none(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE)
    ask(engine, "keeps", "k", marks=[Breakpoint(8, TTL_1H_S), Breakpoint(16, TTL_5M_S)])
    clock.advance(TTL_5M_S - 1)
    ask(engine, "keeps", "k2", marks=FOUR_BLOCKS)
    clock.advance(2)
    assert engine.status().pins["device"].num_blocks == 4
    clock.advance(TTL_5M_S)
    assert engine.status().pins["device"].num_blocks == 2, "those of the hour"
    clock.advance(TTL_1H_S)
    assert engine.status().pins["device"].num_blocks == 0


def test_a_quota_keeps_the_beginning_of_a_prompt_and_what_lasts_longer(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE)
    assert ask(engine, "a", "a", marks=FOUR_BLOCKS, ratio=3 / 16).num_pinned_tokens == 12
    assert dropped(engine) == {"quota": 1}
    day = [Breakpoint(8, TTL_24H_S)]
    assert ask(engine, "a", "b", [7] * 17, marks=day, ratio=3 / 16).num_pinned_tokens == 8
    assert dropped(engine) == {"quota": 3}, "the deepest blocks of the prompt before made room"
    assert ask(engine, "a", "c", [8] * 17, marks=FOUR_BLOCKS, ratio=3 / 16).num_pinned_tokens == 0, "no later end"
    assert engine.status().pins["device"].num_blocks == 3
    assert ask(engine, "b", "d", marks=FOUR_BLOCKS, ratio=0.0).num_pinned_tokens == 0, "a plan without a quota"


def test_all_tenants_together_take_no_more_than_their_share(make_engine, clock):
    config = scheduler_config(swap_costs=False, max_pinned_ratio=0.25, **CROWDED)
    engine = make_engine(config, clock, num_blocks=24, block_size=SIZE)
    assert [ask(engine, name, name, marks=FOUR_BLOCKS).num_pinned_tokens for name in "ab"] == [16, 12]
    assert dropped(engine) == {"pool": 2}, "the first one gave its deepest block up, the second one has no fourth"
    assert ask(engine, "a", "again", marks=FOUR_BLOCKS).num_pinned_tokens == 12, "each uses as much of its quota"
    clock.advance(1)
    assert ask(engine, "a", "else", [7] * 17, marks=FOUR_BLOCKS).num_pinned_tokens == 12, "its own pins make room"
    assert ask(engine, "b", "b2", marks=FOUR_BLOCKS).num_pinned_tokens == 12


def test_a_tenant_with_a_larger_quota_gets_more_of_a_full_share(make_engine, clock):
    config = scheduler_config(swap_costs=False, max_pinned_ratio=0.5, **CROWDED)
    engine = make_engine(config, clock, num_blocks=32, block_size=SIZE)
    for number, tenant in enumerate("abcd"):
        assert ask(engine, tenant, tenant, [number + 7] * 17, FOUR_BLOCKS, ratio=0.125).num_pinned_tokens == 16
    long = list(range(33))
    assert ask(engine, "dear", "d", long, [Breakpoint(32, TTL_5M_S)], ratio=0.375).num_pinned_tokens == 28
    assert engine.status().pins["device"].num_blocks == 16


def test_lower_classes_make_room_in_a_full_share_and_get_none_of_it(make_engine, clock):
    config = scheduler_config(swap_costs=False, max_pinned_ratio=0.25, **CROWDED)
    engine = make_engine(config, clock, num_blocks=40, block_size=SIZE)
    marks = {"marks": FOUR_BLOCKS, "ratio": 0.2}
    assert ask(engine, "low", "l", **marks, priority_class=3).num_pinned_tokens == 16
    assert ask(engine, "same", "s", **marks, priority_class=2).num_pinned_tokens == 16
    assert ask(engine, "high", "h", **marks, priority_class=2).num_pinned_tokens == 16
    assert dropped(engine) == {"pool": 2}, "of the lower class, though it used no more of its quota than the other"
    assert ask(engine, "urgent", "u", [7] * 17, **marks, priority_class=1).num_pinned_tokens == 16
    assert dropped(engine) == {"pool": 2 + 4}, "what the lower class had left, and then of the class between"
    clock.advance(1)
    assert ask(engine, "low", "l2", **marks, priority_class=3).num_pinned_tokens == 0
    assert ask(engine, "urgent", "u2", [7] * 17).num_cached_tokens == 16
    assert engine.status().pins["device"].num_blocks == 10


def test_a_use_without_a_mark_counts_when_the_time_is_over(make_engine, clock):
    engine = make_engine(scheduler_config(**CROWDED), clock, num_blocks=16, block_size=SIZE)
    ask(engine, "keeps", "k", marks=FOUR_BLOCKS)
    ask(engine, "other", "o", list(range(500, 517)))
    ask(engine, "other", "o2", list(range(600, 617)))
    clock.advance(TTL_5M_S - 1)
    assert ask(engine, "keeps", "k2").num_cached_tokens == 16
    clock.advance(2)
    assert engine.status().pins["device"].num_blocks == 0
    ask(engine, "crowd", "c", list(range(900, 922)))
    assert ask(engine, "other", "o3", list(range(500, 517))).num_cached_tokens < 16, "control: blocks were evicted"
    assert ask(engine, "keeps", "k3").num_cached_tokens == 16, "it was used last"


def test_live_sequences_take_pinned_blocks_before_anything_waits(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE)
    ask(engine, "keeps", "k", marks=FOUR_BLOCKS)
    long = list(range(58))
    engine.add(make_request(long, "long", max_tokens=4, tenant="crowd", cache_salt=b"crowd"))
    assert drained_tokens(engine) == {("long", 0): expected(long, 4)}
    assert engine.status().num_admission_refusals == 0
    assert dropped(engine) == {"pressure": 4}
    assert ask(engine, "keeps", "k2", marks=FOUR_BLOCKS).num_pinned_tokens == 16, "and are pinned again"


def test_pins_go_with_their_tenant(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=32, block_size=SIZE)
    for tenant in "ab":
        ask(engine, tenant, tenant, marks=FOUR_BLOCKS)
    engine.forget_tenant("a")
    assert (engine.status().pins["device"].num_blocks, dropped(engine)) == (4, {"forgotten": 4})
    assert ask(engine, "b", "b2").num_cached_tokens == 16


def test_a_pin_follows_its_block_to_host_memory(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE, num_host_blocks=12)
    ask(engine, "keeps", "k", marks=FOUR_BLOCKS)
    for number in range(4):
        ask(engine, "crowd", f"c{number}", [1000 + 60 * number + i for i in range(58)])
    assert engine.status().pins["host"].num_blocks > 0
    cached = ask(engine, "keeps", "k2").num_cached_tokens
    assert cached >= 4 * engine.status().pins["host"].num_blocks > 0
    clock.advance(TTL_5M_S + 1)
    assert engine.status().pins["host"].num_blocks == 0
    assert_at_rest(engine)


def run_job(engine, leg, compute=True):
    """Run a prefill job of a marked prompt at its source."""
    terms = RequestTerms(tenant="a", pins=PinTerms(breakpoints=FOUR_BLOCKS, device_ratio=0.5))
    engine.add_prefill(PrefillJob(leg=leg, token_ids=tuple(PREFIX), terms=terms, compute=compute))
    kinds = []
    while PrefillEventKind.DONE not in kinds:
        events = engine.step().prefill_events
        if events and not kinds:
            engine.grant(leg)
        kinds += [event.kind for event in events]
    engine.release_prefill(leg)
    drain(engine)


def test_a_source_pins_what_it_computed_and_what_it_only_sends(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=16, block_size=SIZE)
    run_job(engine, "leg")
    assert engine.status().pins["device"].num_blocks == 4
    clock.advance(TTL_5M_S - 1)
    run_job(engine, "again", compute=False)
    clock.advance(2)
    assert engine.status().pins["device"].num_blocks == 4


@pytest.mark.parametrize("window", [{"window": 10}, {"window": 10, "num_sinks": 4}])
def test_nothing_is_pinned_where_blocks_are_released_behind_a_window(make_engine, clock, window):
    config = scheduler_config(max_num_batched_tokens=8)
    engine = make_engine(config, clock, num_blocks=40, block_size=SIZE, **window)
    engine.add(
        make_request(list(range(37)), "k", max_tokens=3, pins=PinTerms(breakpoints=FOUR_BLOCKS, device_ratio=0.5))
    )
    assert drain(engine).stats["k"].num_pinned_tokens == 0
    assert engine.status().pins["device"].num_blocks == 0


def test_nothing_is_pinned_where_nothing_is_shared(make_engine, clock):
    engine = make_engine(scheduler_config(prefix_cache=False), clock, num_blocks=16, block_size=SIZE)
    assert ask(engine, "keeps", "k", marks=FOUR_BLOCKS).num_pinned_tokens == 0


def test_tokens_are_written_when_they_are_pinned_first_or_for_longer(make_engine, clock):
    engine = make_engine(ALWAYS, clock, num_blocks=24, block_size=SIZE)
    day, hour = Breakpoint(16, TTL_24H_S), Breakpoint(16, TTL_1H_S)
    assert ask(engine, "a", "plain").pinned_spans == ()
    found = ask(engine, "a", "a", marks=[day])
    assert (found.num_cached_tokens, found.pinned_spans) == (16, (PinnedSpan(0, 16, TTL_24H_S),)), "cached, not kept"
    for number, marks in enumerate(([day], [hour], FOUR_BLOCKS)):
        assert ask(engine, "a", f"a{number}", marks=marks).pinned_spans == ()
    assert ask(engine, "b", "b", marks=FOUR_BLOCKS).pinned_spans == (PinnedSpan(0, 16, TTL_5M_S),)
    both = [Breakpoint(10, TTL_1H_S), Breakpoint(17, TTL_5M_S)]
    assert ask(engine, "b", "b1", marks=both).pinned_spans == (PinnedSpan(0, 8, TTL_1H_S),), "in full blocks"
    assert ask(engine, "b", "b2", marks=both).pinned_spans == ()
    clock.advance(TTL_5M_S + 1)
    assert ask(engine, "b", "b3", marks=both).pinned_spans == (PinnedSpan(8, 16, TTL_5M_S),), "its time was over"


def test_written_tokens_are_told_by_time_and_by_what_a_cache_had():
    spans = [PinnedSpan(0, 8, TTL_1H_S), PinnedSpan(8, 32, TTL_5M_S)]
    assert cache_writes(spans, 0, 0) == CacheWrites(num_5m=24, num_1h=8)
    assert cache_writes(spans, 4, 16) == CacheWrites(num_5m=24, num_1h=4, num_cached=12)
    assert cache_writes(spans, 16, 8) == CacheWrites(num_5m=16)
    assert cache_writes([], 0, 8) == cache_writes(spans, 40, 40) == CacheWrites()
