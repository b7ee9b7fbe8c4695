"""Order of eviction under pins, on the pools alone: what goes first, what is copied out, and how long it takes."""

import pytest

from stratos.common.clock import FakeClock
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.host_tier import HostTier
from stratos.engine.kv_cache.pins import MAX_EXPIRED, Pin, TierPins
from stratos.engine.kv_cache.swap_costs import SwapCosts

SIZE = 4


def pin(tenant="a", expires_s=1.0):
    return Pin(tenant=tenant, ttl_s=300, expires_s=expires_s, device_ratio=0.9, host_ratio=0.9)


def released(num_blocks, num_pinned, expires_s=10.0):
    """A pool in which a prompt's first blocks are pinned and nothing references it any more."""
    blocks = BlockManager(20, SIZE, max_pinned_ratio=0.9)
    table, names = blocks.allocate(num_blocks), [bytes([number]) for number in range(num_blocks)]
    for name, block in zip(names, table, strict=True):
        blocks.cache.insert(name, block)
    assert blocks.cache.pin(names[:num_pinned], pin(expires_s=expires_s)) == num_pinned
    blocks.release(table)
    return blocks, names


@pytest.mark.parametrize("is_late", [False, True])
def test_a_prompt_whose_time_is_over_goes_from_its_end(is_late):
    blocks, names = released(6, 5)
    if is_late:  # the turn of pinned blocks comes before their time is over
        blocks.release(blocks.allocate(15))
        assert blocks.cache.oldest(2) == [(4, names[4]), (3, names[3])]
    left = names[: 6 - is_late]
    blocks.cache.pins.expire(11.0)
    blocks.verify()
    assert [name for _, name in blocks.cache.oldest(9)] == left[::-1]
    blocks.allocate(blocks.num_free + 1)
    assert len(blocks.cache.match(names)) == len(left) - 1


def test_pins_of_several_prompts_go_from_their_ends_and_younger_blocks_after_them():
    blocks, names = released(4, 4)
    table = blocks.allocate(4)
    young = [bytes([100 + number]) for number in range(4)]
    for name, block in zip(young, table, strict=True):
        blocks.cache.insert(name, block)
    blocks.cache.pin(young, pin("b", expires_s=20.0))
    blocks.release(table)
    assert len(blocks.cache.oldest(20)) == 8
    blocks.cache.pins.expire(30.0)
    blocks.verify()
    assert [name for _, name in blocks.cache.oldest(20)] == names[::-1] + young[::-1]


def test_uses_of_a_long_prompt_move_one_end_and_a_bounded_number_of_pins_ends_at_once():
    pins = TierPins(10_000, 0.9, lambda wish: wish.device_ratio)
    names = [number.to_bytes(32, "big") for number in range(5000)]
    assert pins.add(names, pin()) == 5000
    for use in range(2, 100):
        assert pins.renew(list(names), pin(expires_s=use))
    assert not pins.renew(names[:-1], pin())
    assert not pins.renew(names, pin("b")), "of another tenant"
    pins.expire(98.5)
    assert len(pins) == 5000
    pins.expire(99.0)
    assert len(pins) == 5000 - MAX_EXPIRED
    assert names[0] in pins
    assert pins.is_due(99.0), "the others end with the next steps"
    for _ in range(4):
        pins.expire(99.0)
    assert not pins
    pins.verify(lambda name: True)


def kept_out(tier, num_plans):
    """Blocks that each of some plans copies out."""
    found = []
    for number in range(num_plans):
        tier.begin_plan(number)
        swaps = tier.drain_swaps()
        found.append([copy.block for copy in swaps.outs])
        tier.retire(swaps, 0.001)
    return found


def crowded_tier(num_slots, num_pinned, num_held):
    """A full pool of cached blocks, and host slots that are pinned by another tenant or held."""
    blocks = BlockManager(20, SIZE, max_pinned_ratio=0.9)
    tier = HostTier(
        blocks, num_slots, SwapCosts(16, 16, FakeClock()), is_fenced=True, always=True, max_pinned_ratio=0.5
    )
    for number in range(num_pinned):
        slot = tier.pool.allocate(b"b%d" % number)
        tier.pool.end_move(slot)
    tier.pool.pin([b"b%d" % number for number in range(num_pinned)], pin("b", expires_s=100.0))
    held = [tier.pool.allocate(None) for _ in range(num_held)]
    tier.pool.hold(held)
    for slot in held:
        tier.pool.end_move(slot)
    table = blocks.allocate(20)
    for block in table:
        blocks.cache.insert(bytes([block]), block)
    blocks.release(table)
    return tier, blocks


def test_plans_copy_no_more_blocks_without_a_pin_than_fit_beside_pinned_slots():
    tier, _ = crowded_tier(10, 5, 3)
    copies = kept_out(tier, 8)
    assert sum(map(len, copies)) == 2, "and not the same ones in each plan"
    assert tier.pool.pins.count("b") == 5


def test_no_copy_pushes_a_pinned_slot_out():
    tier, blocks = crowded_tier(10, 5, 5)
    blocks.cache.pin([bytes([number]) for number in range(8)], pin("a", expires_s=100.0))
    blocks.cache.oldest(1)
    assert kept_out(tier, 3) == [[], [], []]
    tier, blocks = crowded_tier(10, 5, 0)
    blocks.cache.pin([bytes([number]) for number in range(20)], pin("a", expires_s=100.0))
    kept_out(tier, 5)
    assert (tier.pool.pins.count("b"), tier.pool.pins.dropped["pressure"]) == (5 - 2, 0), "fair parts of the share"


def test_each_block_is_copied_ahead_once_while_a_waiting_prompt_keeps_its_own_slots_young():
    """Else the blocks take one another's slots for ever, and count as taken, so the prompt is never let in."""
    blocks, names, waiting = BlockManager(4, SIZE), [bytes([number]) for number in range(4)], b"waiting"
    tier = HostTier(blocks, 4, SwapCosts(16, 16, FakeClock()), is_fenced=True, always=True)
    for name in (names[2], names[1], names[0], waiting):  # the longest unused first
        tier.pool.end_move(tier.pool.allocate(name))
    for name, block in zip(names, blocks.allocate(4), strict=True):
        blocks.cache.insert(name, block)
        blocks.release([block])
    launched, num_copies = None, []
    for number in range(12):  # a plan is made before the one that was launched retires
        tier.begin_plan(number)
        tier.unmatch(tier.match([waiting], may_wait=True))
        planned = tier.drain_swaps()
        num_copies.append(len(planned.outs))
        if launched is not None:
            tier.retire(launched, 0.001)
        launched = planned
    assert sum(num_copies[:4]) == 4
    assert not any(num_copies[4:])
    assert tier.pool.find(waiting) is not None


def test_blocks_that_were_copied_ahead_go_in_the_order_of_their_last_use():
    """Later ones do not go before the oldest of all, which would stay on the device for ever."""
    blocks = BlockManager(8, SIZE)
    tier = HostTier(blocks, 8, SwapCosts(16, 16, FakeClock()), is_fenced=True, always=True)
    for block in blocks.allocate(8):
        blocks.cache.insert(bytes([block]), block)
    for used in ([1, 0], [3, 2]):
        blocks.release(used)
        assert kept_out(tier, 2) == [used[::-1], []]
    assert [blocks.allocate(1) for _ in range(4)] == [[0], [1], [2], [3]]
