"""Large blocks of memory: zero, aligned, and alive as long as a view of them."""

from __future__ import annotations

import gc

import pytest
import torch

from stratos.engine.memory.huge_pages import HUGE_PAGE_BYTES, zeroed_bytes


@pytest.mark.parametrize("num_bytes", [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
def test_memory_is_zero_and_outlives_its_first_name(num_bytes: int) -> None:
    memory = zeroed_bytes(num_bytes)
    assert memory.shape == (num_bytes,)
    assert not bool(memory.any())
    memory.fill_(7)
    end = memory[num_bytes // 2 :]
    del memory
    gc.collect()
    assert bool((end == 7).all())
    if num_bytes >= HUGE_PAGE_BYTES:
        assert zeroed_bytes(num_bytes).data_ptr() % HUGE_PAGE_BYTES == 0


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        zeroed_bytes(1 << 62)
    assert zeroed_bytes(4).dtype == torch.uint8
