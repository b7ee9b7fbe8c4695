"""Copies between device pages and host slots: bit for bit, in the order that a plan promises."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import torch

from stratos.common.clock import FakeClock, SystemClock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry
from stratos.engine.memory.host_pages import NAME, HostPages, HostSwap
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.memory.named_memory import NamedMemory

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


class FlippingSlots:
    """Slots of which one bit flips when the last of them was filled, or is about to be read."""

    def __init__(self, slots: torch.Tensor, *, is_out: bool) -> None:
        self.slots, self.is_out = slots, is_out

    def __getitem__(self, slot: int) -> torch.Tensor | FlippingSlots:
        if self.is_out:
            return self
        self.flip()
        return self.slots[slot]

    def copy_(self, content: torch.Tensor, **_: object) -> None:
        self.slots[-1].copy_(content)
        self.flip()

    def flip(self) -> None:
        self.slots[-1].view(torch.uint8).view(-1)[5] ^= 4


@pytest.mark.parametrize("is_out", [True, False])
def test_a_bit_that_flips_during_a_copy_is_noticed(monkeypatch: pytest.MonkeyPatch, is_out: bool) -> None:
    _, host = make_pages(num_slots=2)
    slots = FlippingSlots(host.slots, is_out=is_out)
    with monkeypatch.context() as patched:
        if is_out:
            patched.setattr(host, "slots", slots)
        assert host.swap([(0, 1)], []).damaged == ()
    if not is_out:
        monkeypatch.setattr(host, "slots", slots)
    assert host.swap([], [(1, 3)]).damaged == (1,)


def test_slots_are_a_file_of_memory_with_a_name_and_are_given_back() -> None:
    def files() -> list[Path]:
        links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        return [link for link in links if NAME in link.name]

    gc.collect()  # those of other tests
    before = len(files())
    _, host = make_pages(num_slots=3)
    assert len(files()) == before + 1
    host.slots.zero_()
    del host
    gc.collect()
    assert len(files()) == before


@pytest.mark.parametrize("code", [0, 2])
def test_memory_of_a_device_is_registered_in_the_size_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    calls, errors = list[tuple[object, ...]](), list[int]()

    class Runtime:
        def cudaHostRegister(self, *arguments: int) -> int:
            calls.append(arguments)
            errors.extend([code] if code else [])
            return code

        def cudaHostUnregister(self, address: int) -> None:
            calls.append((address,))

    def launch(size: int, *, device: str) -> None:
        """As on a device: the check after a launch raises what the thread's last error was, and takes it."""
        if errors:
            raise RuntimeError(f"CUDA error {errors.pop()}")

    empty = torch.empty
    monkeypatch.setattr(torch, "zeros", launch)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch, "empty", lambda size, *, dtype, pin_memory: empty(size, dtype=dtype))
    memory = NamedMemory("test", (1 << 20) + 4096, is_pinned=True)
    assert memory.tensor.nbytes == (1 << 20) + 4096
    assert not errors, "the next launch would raise the refusal"
    ((address, num_bytes, _),) = calls
    assert num_bytes == (1 << 20) + 4096
    assert (address == memory.tensor.data_ptr()) == (code == 0)
    del memory
    gc.collect()
    assert calls[1:] == ([(address,)] if code == 0 else []), "what was registered, and no more"


def test_bytes_of_a_slot_fill_another_one_and_a_changed_slot_gives_none() -> None:
    pages, host = make_pages(num_slots=3)
    before = pages.tensor.clone()
    host.swap([(1, 2)], [])
    content = host.read(2)
    assert content is not None
    host.fill(0, bytes(content))
    assert host.swap([], [(0, 5)]).damaged == ()
    assert torch.equal(pages.tensor[5].view(torch.int16), before[1].view(torch.int16))
    host.slots[2].view(torch.int16).view(-1)[3] ^= 1
    assert host.read(2) is None
    assert host.read(0) is not None
    with pytest.raises(ValueError, match="broadcast"):
        host.fill(0, bytes(content)[:-2])
