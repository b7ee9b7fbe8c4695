"""Pack and unpack between pages and the wire: bits, checksums, and what they leave alone."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.device.checksum import finish, mixed_sum
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.memory import packing
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda.page_copies import PageCopies
from stratos.engine.triton_kernels import kv_copies

TABLE = (5, 2, 7, 0)
CASES = [
    (torch.bfloat16, 8, KvRange(1, 11, 0, 2)),
    (torch.bfloat16, 8, KvRange(4, 8, 1, 2)),
    (torch.bfloat16, 8, KvRange(6, 6, 0, 2)),
    (torch.float32, 10, KvRange(3, 5, 0, 2)),
    (torch.float8_e4m3fn, 8, KvRange(7, 16, 1, 2)),
]
"""With a head's size: two, five and one words a token."""


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_copies, "TOKENS_PER_PROGRAM", 8)


def make_pages(dtype: torch.dtype, head_dim: int, num_blocks: int = 8) -> KvPages:
    geometry = KvGeometry(num_layers=2, num_kv_heads=2, head_dim=head_dim, block_size=4, element_bytes=dtype.itemsize)
    pages = KvPages(geometry, num_blocks, dtype, torch.device(DEVICE))
    with torch.inference_mode():
        pages.tensor.view(torch.uint8).random_(0, 256)
    return pages


def bits(pages: KvPages) -> torch.Tensor:
    return pages.tensor.view(torch.uint8).clone()


@pytest.mark.parametrize(("dtype", "head_dim", "kv_range"), CASES)
def test_kernels_do_what_the_loop_over_blocks_does(dtype: torch.dtype, head_dim: int, kv_range: KvRange) -> None:
    source, target, expected = make_pages(dtype, head_dim), make_pages(dtype, head_dim), make_pages(dtype, head_dim)
    expected.tensor.copy_(target.tensor)
    payload = source.gather(TABLE, kv_range)
    run, checksum = PageCopies(source).pack(TABLE, kv_range)
    assert bytes(run.cpu().numpy()) == bytes(payload)
    assert checksum == mixed_sum(payload)
    copies, moved = PageCopies(target), tuple(reversed(TABLE))
    assert copies.unpack(moved, kv_range, run) == checksum
    expected.scatter(moved, kv_range, payload)
    assert torch.equal(bits(target), bits(expected)), "and nothing else has changed"
    assert bytes(copies.gather(moved, kv_range)) == bytes(payload)
    copies.scatter(TABLE, kv_range, payload)
    expected.scatter(TABLE, kv_range, payload)
    assert torch.equal(bits(target), bits(expected))


@pytest.mark.parametrize("has_words", [True, False])
def test_torch_and_the_kernel_agree(has_words: bool) -> None:
    pages = make_pages(torch.bfloat16, 8 if has_words else 10)
    kv_range = KvRange(5, 15, 1, 2)
    blocks = torch.tensor(TABLE[1:], dtype=torch.int32, device=DEVICE)
    run = torch.empty(pages.wire_shape(TABLE, kv_range), dtype=torch.bfloat16, device=DEVICE)
    packing.pack(pages.tensor, blocks, 1, run, 1)
    total = packing.sum_of_mixed(run)
    payload = bytes(pages.gather(TABLE, kv_range))
    assert bytes(run.view(torch.uint8).cpu().numpy()) == payload
    assert finish(int(total), len(payload)) == mixed_sum(payload) == PageCopies(pages).pack(TABLE, kv_range)[1]
    if has_words:
        words = torch.empty((*run.shape[:-1], 2), dtype=torch.int64, device=DEVICE)
        found = kv_copies.copy_kv(pages.tensor.view(torch.int64), blocks, 1, words, layer_begin=1, is_pack=True)
        assert found is not None
        assert int(found) == int(total)


def test_sizes_and_ranges_that_do_not_fit_are_refused() -> None:
    copies = PageCopies(make_pages(torch.bfloat16, 8))
    for bad in (KvRange(0, 17, 0, 1), KvRange(5, 4, 0, 1), KvRange(0, 4, 1, 3)):
        with pytest.raises(ValueError, match="outside of"):
            copies.pack(TABLE, bad)
    with pytest.raises(ValueError, match="the range needs"):
        copies.unpack(TABLE, KvRange(0, 4, 0, 1), torch.zeros(8, dtype=torch.uint8, device=DEVICE))
    with pytest.raises(ValueError, match="the range needs"):
        copies.scatter(TABLE, KvRange(0, 4, 0, 1), memoryview(bytes(8)))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096, 300_001])
def test_the_checksum_of_a_host_is_that_of_torch(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    run = torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())
    assert mixed_sum(payload) == finish(int(packing.sum_of_mixed(run)), size)


def test_the_checksum_sees_every_bit_and_every_place() -> None:
    payload = random.Random(0).randbytes(41)
    seen = {mixed_sum(payload)}
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        seen.add(mixed_sum(damaged))
    words = [payload[at : at + 8] for at in range(0, 32, 8)]
    seen |= {mixed_sum(b"".join(order) + payload[32:]) for order in itertools.permutations(words)}
    seen |= {mixed_sum(other) for other in (payload[:-1], payload + b"\0", b"", bytes(8), bytes(16))}
    assert len(seen) == 1 + 8 * 41 + 23 + 5
    assert mixed_sum(b"KV of a prompt") == 0xE6B1C7F19E9BD8E1  # pinned: both ends must compute the same
