"""Property tests: whatever holders do, no page is lost, read by one and written by another, or held without need."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratos.engine.contract.kv_groups import KvGroups, group_layers
from stratos.engine.kv_cache.grouped_blocks import GroupedBlockManager
from tests.support.examples import examples

SHAPES = [
    KvGroups(((0,), (1,)), 1, 8),
    KvGroups(((2, 5), (0, 1), (3, 4)), 1, 8),
    KvGroups(((0,), (1,), (2,), (3,), (4,)), 2, 8),
]


class GroupedBlocksMachine(RuleBasedStateMachine):
    """Random holders of tables allocate, share, name, pass, fence and release; they pass from the first block on."""

    @initialize(groups=st.sampled_from(SHAPES), num_blocks=st.integers(3, 9))
    def start(self, groups, num_blocks):
        self.blocks, self.groups = GroupedBlockManager(num_blocks, 4, groups), groups
        self.held, self.fences, self.hashes, self.owners = [], [], 0, {}

    @rule(count=st.integers(1, 5))
    def allocate(self, count):
        available = self.blocks.num_available
        taken = self.blocks.allocate(count)
        assert (taken is None) == (count > available)
        if taken:
            self.held.append([taken, 0])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_hashes(self, data):
        table, _ = data.draw(st.sampled_from(self.held))
        for block in table:
            if not self.blocks.cache.has_hash(block):
                self.hashes += 1
                self.owners[self.hashes] = block
                self.blocks.cache.insert(self.hashes.to_bytes(32, "little"), block)

    @precondition(lambda self: self.hashes)
    @rule(data=st.data(), num_needed=st.integers(0, 2))
    def share(self, data, num_needed):
        first = data.draw(st.integers(1, self.hashes))
        names = [name.to_bytes(32, "little") for name in range(first, self.hashes + 1)]
        hit = self.blocks.match(names, lambda end: max(0, end - num_needed))
        if hit:
            self.blocks.reference(hit)
            num_passed = max(0, len(hit) - num_needed)
            self.blocks.pass_parts(hit[:num_passed])
            self.held.append([hit, num_passed])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 3))
    def pass_parts(self, data, count):
        holder = data.draw(st.sampled_from(self.held))
        table, passed = holder
        holder[1] = min(len(table), passed + count)
        self.blocks.pass_parts(table[passed : holder[1]])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_fenced=st.booleans())
    def release(self, data, is_fenced):
        holder = data.draw(st.sampled_from(self.held))
        self.held = [other for other in self.held if other is not holder]
        table, passed = holder
        self.blocks.end_passes(table[:passed])
        if is_fenced:
            self.blocks.fence(table)
            self.fences.append(table)
        self.blocks.release(table)

    @precondition(lambda self: self.fences)
    @rule()
    def unfence(self):
        self.blocks.unfence(self.fences.pop(0))

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def forget(self, data):
        self.blocks.forget([data.draw(st.integers(1, self.hashes)).to_bytes(32, "little")])

    @invariant()
    def law(self):
        if not hasattr(self, "blocks"):
            return
        self.blocks.verify()
        needed = {block for table, passed in self.held for block in table[passed:]}
        assert len(self.blocks.page_ids(list(needed))) == len(set(self.blocks.page_ids(list(needed)))), "a part is gone"
        if not self.held and not self.fences:
            ledger = self.blocks.ledger()
            assert ledger.free + ledger.cached == ledger.total == self.blocks.num_available

    @rule()
    def take_all(self):
        seen = {page for table, passed in self.held for page in self.blocks.page_ids(table[passed:])}
        seen |= {
            page for table, _ in self.held for b in table for page in self.blocks.page_ids([b])[: self.groups.num_full]
        }
        fenced = {page for table in self.fences for page in self.blocks.page_ids(table)}
        taken = self.blocks.allocate(self.blocks.num_available)
        assert taken is not None
        assert not (seen | fenced) & set(self.blocks.page_ids(taken)), "a page has two owners"
        self.blocks.release(taken)

    def teardown(self):
        if not hasattr(self, "blocks"):
            return
        for table, passed in self.held:
            self.blocks.end_passes(table[:passed])
            self.blocks.release(table)
        for table in self.fences:
            self.blocks.unfence(table)
        assert self.blocks.num_available == self.blocks.num_blocks


TestGroupedBlocks = GroupedBlocksMachine.TestCase
TestGroupedBlocks.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_a_long_table_costs_its_full_pages_and_a_window() -> None:
    blocks = GroupedBlockManager(12, 4, SHAPES[1])
    table: list[int] = []
    for _ in range(30):  # with whole blocks 12 of them would be all
        taken = blocks.allocate(1)
        assert taken is not None
        table += taken
        blocks.pass_parts(table[len(table) - 3 : len(table) - 2])
    assert blocks.ledger().allocated == 12 - blocks.num_available == 12
    blocks.end_passes(table[:28])
    blocks.release(table)
    assert blocks.num_available == blocks.num_free == 12


def test_idle_parts_go_before_cached_blocks_oldest_first() -> None:
    blocks = GroupedBlockManager(4, 4, SHAPES[0])
    table = blocks.allocate(4)
    assert table is not None
    names = [bytes([i]) * 32 for i in range(4)]
    for name, block in zip(names, table, strict=True):
        blocks.cache.insert(name, block)
    blocks.pass_parts(table[:2])
    assert blocks.num_available == 1
    blocks.end_passes(table[:2])
    blocks.release(table)
    taken = blocks.allocate(1)
    assert taken is not None
    assert blocks.cache.match(names) == table, "no block was evicted"
    assert blocks.match(names, lambda end: max(0, end - 2)) == table
    assert blocks.match(names[:2], lambda end: max(0, end - 1)) == []
    blocks.release(taken)


def test_a_fenced_part_is_not_given_away() -> None:
    blocks = GroupedBlockManager(3, 4, SHAPES[0])
    table = blocks.allocate(1)
    assert table is not None
    blocks.cache.insert(b"name" * 8, table[0])
    blocks.reference(table)
    blocks.pass_parts(table)  # one holder has passed it, the other one ends while its step runs
    blocks.fence(table)
    blocks.release(table)
    pages, taken = set(blocks.page_ids(table)), blocks.allocate(blocks.num_available)
    assert taken is not None
    assert not pages & set(blocks.page_ids(taken))
    blocks.release(taken)
    assert blocks.num_available == 2
    blocks.unfence(table)
    assert blocks.num_available == 2
    assert blocks.allocate(2) is not None
    assert blocks.match([b"name" * 8]) == table, "half a block more is free without it"
    blocks.verify()


@pytest.mark.parametrize(
    ("num_full", "num_window", "pages"),
    [
        (13, 13, (1, 1)),
        (8, 24, (1, 3)),
        (8, 40, (1, 5)),
        (10, 52, (2, 11)),
        (4, 22, (2, 11)),
        (5, 29, (1, 6)),
        (1, 2, (1, 2)),
    ],
)
def test_columns_leave_little_room_empty(num_full: int, num_window: int, pages: tuple[int, int]) -> None:
    windows = (*[None] * num_full, *[64] * num_window)
    groups = group_layers(windows)
    assert groups is not None
    assert sorted(layer for column in groups.columns for layer in column) == list(range(len(windows)))
    assert groups.num_pages * groups.num_layers <= 1.05 * len(windows)
    assert (groups.num_full, groups.num_window) == pages


def test_layers_of_one_kind_have_no_groups() -> None:
    assert group_layers((None,) * 4) is None
    assert group_layers((64,) * 4) is None
