"""Copies between device pages and host slots: bit for bit, in the order that a plan promises."""

from __future__ import annotations

import random

import pytest
import torch

from stratos.common.clock import FakeClock, SystemClock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry
from stratos.engine.memory.host_pages import HostPages, HostSwap
from stratos.engine.memory.kv_pages import KvPages

GEOMETRY = KvGeometry(num_layers=3, num_kv_heads=2, head_dim=4, block_size=4, element_bytes=2)


def make_pages(num_slots: int) -> tuple[KvPages, HostPages]:
    pages = KvPages(GEOMETRY, 6, torch.bfloat16, torch.device("cpu"))
    pages.tensor.copy_(torch.randn(pages.tensor.shape))
    return pages, HostPages(pages, num_slots, SystemClock())


def test_blocks_come_back_bit_for_bit_and_nothing_else_changes() -> None:
    pages, host = make_pages(num_slots=5)
    before = pages.tensor.clone()
    assert host.swap([(1, 4), (3, 0)], []).wait() >= 0
    pages.tensor[[1, 3]] = torch.nan
    host.swap([], [(4, 5), (0, 1)])
    assert torch.equal(pages.tensor[5].view(torch.int16), before[1].view(torch.int16))
    assert torch.equal(pages.tensor[1].view(torch.int16), before[3].view(torch.int16))
    assert torch.equal(pages.tensor[[0, 2, 4]], before[[0, 2, 4]])


def test_what_leaves_is_read_before_what_comes_is_written() -> None:
    pages, host = make_pages(num_slots=2)
    before = pages.tensor.clone()
    host.swap([(0, 0)], [])
    host.swap([(2, 1)], [(0, 2)])
    host.swap([], [(1, 3)])
    assert torch.equal(pages.tensor[2], before[0])
    assert torch.equal(pages.tensor[3], before[2])


def test_without_a_stream_what_is_started_is_done() -> None:
    pages, host = make_pages(num_slots=2)
    before = pages.tensor.clone()
    out = host.start([(0, 1)], [(1, 3)], None, is_fenced=False)
    assert torch.equal(pages.tensor[3], before[0])
    assert out.wait() == out.wait() >= 0
    assert host.start([], [], None, is_fenced=True).wait() == 0.0


class TickingClock(FakeClock):
    """Each look at it takes a second."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


class Event:
    """Of copies that took 3 ms."""

    def synchronize(self) -> None: ...

    def elapsed_time(self, _: Event) -> float:
        return 3.0


def test_the_time_of_sums_is_that_of_the_copies() -> None:
    pages, _ = make_pages(num_slots=2)
    host = HostPages(pages, 2, TickingClock())
    swap = HostSwap(host, [0, 1], (), 0.5, Event(), Event())  # type: ignore[arg-type]
    assert swap.wait() == swap.wait() == pytest.approx(1.503)


def test_no_slots_cost_nothing_and_too_many_are_refused() -> None:
    pages, host = make_pages(num_slots=0)
    assert host.swap([], []).wait() == 0.0
    with pytest.raises(InvalidCheckpoint, match="lower host_pool_bytes"):
        HostPages(pages, 1 << 40, FakeClock())


def test_every_flipped_bit_of_a_slot_is_noticed_before_it_is_read() -> None:
    _, host = make_pages(num_slots=3)
    host.swap([(0, 0), (1, 1), (2, 2)], [])
    content, draw = host.slots[1].view(torch.uint8).view(-1), random.Random(7)
    for _ in range(500):
        byte, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
        content[byte] ^= bit
        assert host.swap([], [(0, 3), (1, 4)]).damaged == (1,)
        content[byte] ^= bit
    assert host.swap([], [(0, 3), (1, 4), (2, 5)]).damaged == ()
    assert host.swap([(5, 1)], []).damaged == ()
    assert host.start([], [(1, 4)], None, is_fenced=True).damaged == ()
