"""Contexts are cut by their lengths: every token is in one part, and no batch needs more items than it may have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.engine.attention.context_parts import ContextParts

PARTS = ContextParts(64, 32, 64)


def cut(lengths: list[int], parts: ContextParts = PARTS) -> list[tuple[int, int, int]]:
    """Row, part and parts of each item that is needed."""
    items = parts.items(np.arange(len(lengths)) + 100, np.array(lengths), parts.capacity(len(lengths)))
    return [(int(row) - 100, int(part), int(count)) for row, part, count, _ in items if count]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=300))
def test_every_part_of_every_row_is_there_once_and_split_rows_come_first(lengths: list[int]) -> None:
    items = cut(lengths)
    counts = {row: count for row, _, count in items}
    assert sorted(items) == sorted((row, part, counts[row]) for row in counts for part in range(counts[row]))
    assert set(counts) == set(range(len(lengths)))
    num_split = sum(count > 1 for _, _, count in items)
    assert all(count > 1 for _, _, count in items[:num_split])
    assert num_split <= PARTS.max_split_items
    for (row, part, count), after in pairwise(items):
        assert part + 1 == count or after[:2] == (row, part + 1)


def test_a_long_context_among_short_ones_is_shared_out() -> None:
    items = cut([1000] * 63 + [32000])
    assert [count for row, _, count in items if row < 63] == [1] * 63
    assert [count for row, _, count in items if row == 63] == [21] * 21


def test_equal_rows_fill_the_device_and_a_full_batch_is_not_split() -> None:
    assert {count for _, _, count in cut([1024] * 8)} == {8}
    assert {count for _, _, count in cut([1024 + i % 16 for i in range(64)])} == {1}
    assert {count for _, _, count in cut([8192])} == {64}
    assert {count for _, _, count in cut([40])} == {1}


def test_a_row_is_cut_by_what_its_widest_window_lets_it_read() -> None:
    items = cut([100_000, 500], ContextParts(64, 32, 64, window=512))
    assert [count for row, _, count in items if row == 0] == [8] * 8
    assert [count for row, _, count in items if row == 1] == [8] * 8


def test_items_that_are_not_needed_have_no_parts() -> None:
    items = PARTS.items(np.array([3]), np.array([10]), PARTS.capacity(1))
    assert len(items) == PARTS.capacity(1)
    assert items[0].tolist() == [3, 0, 1, 0]
    assert not items[1:, 2].any()
