"""The collector of a process that serves: it still finds what becomes garbage, and looks at nothing of the start."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from stratos.rpc.serving.heap import MIDDLE, YOUNG, settle_heap


class Node:
    """One half of a cycle."""

    other: Node


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_settled_heap_is_looked_at_no_more_and_cycles_still_go() -> None:
    of_the_start = [Node() for _ in range(100)]
    settle_heap()
    looked_at = {id(one) for one in gc.get_objects()}
    assert not any(id(node) in looked_at for node in of_the_start)
    first, second = Node(), Node()
    first.other, second.other = second, first
    gone = weakref.ref(first)
    del first, second
    kept = [[] for _ in range(2 * YOUNG * MIDDLE)]
    assert gone() is None, len(kept)
