"""StreamingLLM by the C++ kernel: torch's numbers, and bits that depend on a token's context alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, key_unit
from stratos.engine.attention.native_sinks import NativeSinkAttention
from stratos.engine.attention.projections import QkNorm
from stratos.engine.attention.sinks import CachePlaces, SinkPagedAttention, SinkTerms
from stratos.engine.checkpoint.rope_config import RopeConfig
from stratos.engine.layers.rotary import RopeRows, RotaryTable
from stratos.engine.memory.kv_codes import KV_CODES
from stratos.engine.memory.kv_pages import KvPages
from tests.support.pairwise import thinned
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DIM, KV_HEADS, GROUP, BLOCK, NUM_BLOCKS = 64, 2, 3, 16, 90
HEADS, CPU = KV_HEADS * GROUP, torch.device("cpu")
TABLE = tuple((i * 37 + 5) % NUM_BLOCKS for i in range(NUM_BLOCKS))
ROTARY: Any = RotaryTable(RopeConfig(), DIM, 512, CPU)
"""A row of a table is the same in every batch; cosines that torch computes for a batch are not."""
SIGHTS = [(4, 60), (1, 1), (3, 7), (16, 64), (70, 90), (129, 33)]
"""Sinks and window: within a tile of 64 keys, at its border, and in several."""
KEYS = list(itertools.product(SIGHTS, DTYPES, NATIVE_SETS))
SOME = [(sight, DTYPES[i % 3], NATIVE_SETS[i % len(NATIVE_SETS)]) for i, sight in enumerate(SIGHTS)]
CASES = thinned(KEYS, [*SOME, *((SIGHTS[0], dtype, name) for dtype in DTYPES for name in NATIVE_SETS)])
STEPS = [(0, 150), (150, 1), (151, 1), (152, 83), (235, 1), (236, 5)]
"""Start and tokens: chunks and single tokens of one sequence."""


def geometry(dtype: torch.dtype, scale_bytes: int = 0) -> KvGeometry:
    return KvGeometry(
        num_layers=2, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK,
        element_bytes=1 if scale_bytes else dtype.itemsize, scale_bytes=scale_bytes,
    )  # fmt: skip


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, QkNorm]:
    torch.manual_seed(3)
    qkv = torch.randn(STEPS[-1][0] + STEPS[-1][1], (HEADS + 2 * KV_HEADS) * DIM).to(dtype)
    return qkv, QkNorm((torch.rand(HEADS + KV_HEADS, DIM) + 0.5).to(dtype), 1e-6)


def run(
    kernel: NativeSinkAttention | SinkPagedAttention, dtype: torch.dtype, steps: list[tuple[int, int]] = STEPS
) -> torch.Tensor:
    """Results of both layers, all tokens of one sequence."""
    (qkv, norm), outs = inputs(dtype), []
    for start, count in steps:
        rows, part = [RowSpan(0, count, start, TABLE)], qkv[start : start + count]
        rope = ROTARY.rows(torch.arange(start, start + count))
        outs.append(
            torch.cat([kernel.forward(layer, part.clone(), rope, norm, kernel.prepare(rows)) for layer in (0, 1)], 1)
        )
    return torch.cat(outs)


def native(name: str, dtype: torch.dtype, places: CachePlaces, unit: int = 0) -> NativeSinkAttention:
    pages = KvPages(geometry(dtype), NUM_BLOCKS, dtype, CPU, unit)
    pages.tensor.fill_(1e4)  # what lies where nothing was written must not matter
    return NativeSinkAttention(native_library(name), SinkTerms(pages, HEADS, places))


@pytest.mark.parametrize(("sight", "dtype", "name"), CASES)
def test_results_are_those_of_torch_and_packed_keys_change_no_bit(
    sight: tuple[int, int], dtype: torch.dtype, name: str
) -> None:
    places = CachePlaces(*sight, ROTARY)
    unit = key_unit(native_library(name), geometry(dtype), dtype)
    assert unit > 0
    plain, packed = (run(native(name, dtype, places, form), dtype) for form in (0, unit))
    expected = run(
        SinkPagedAttention(SinkTerms(KvPages(geometry(dtype), NUM_BLOCKS, dtype, CPU), HEADS, places)), dtype
    )
    atol = {torch.float32: 5e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(plain, expected, rtol=max(2 * torch.finfo(dtype).eps, 1e-5), atol=atol)
    assert torch.equal(plain, packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_neither_chunks_nor_threads_change_a_bit(name: str, dtype: torch.dtype, packed: bool) -> None:
    places, total = CachePlaces(5, 40, ROTARY), STEPS[-1][0] + STEPS[-1][1]
    unit, before = key_unit(native_library(name), geometry(dtype), dtype) if packed else 0, torch.get_num_threads()
    outs = []
    try:
        for threads, steps in ((1, [(0, total)]), (1, STEPS), (2, STEPS)):
            torch.set_num_threads(threads)
            outs.append(run(native(name, dtype, places, unit), dtype, steps))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[1], outs[2])


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_codes_are_read_as_torch_reads_them(name: str, kind: str) -> None:
    dtype, codes, places = torch.float32, KV_CODES[kind], CachePlaces(4, 60, ROTARY)
    of_codes, unit = geometry(dtype, codes.scale_bytes), key_unit(native_library(name), geometry(dtype, 2), dtype)
    pools = [KvPages(of_codes, NUM_BLOCKS, torch.uint8, CPU, form, codes) for form in (0, unit, 0)]
    plain, packed = (
        NativeSinkAttention(native_library(name), SinkTerms(pages, HEADS, places, dtype)) for pages in pools[:2]
    )
    found = run(plain, dtype)
    # the last bit of a K decides its code
    torch.testing.assert_close(
        found, run(SinkPagedAttention(SinkTerms(pools[2], HEADS, places, dtype)), dtype), rtol=1e-2, atol=1e-1
    )
    assert torch.equal(found, run(packed, dtype))


def test_a_neighbour_that_has_left_its_window_changes_no_bit() -> None:
    """A sequence within its window gets the bits that it gets alone, though the step rotates queries twice."""
    places, table = CachePlaces(4, 60, ROTARY), TABLE[50:]
    rows = [RowSpan(0, 1, 30, table), RowSpan(1, 1, 300, TABLE[:40])]
    torch.manual_seed(1)
    qkv, past, outs = torch.randn(2, (HEADS + 2 * KV_HEADS) * DIM), torch.randn(2, 2, KV_HEADS, 300, DIM), []
    for count in (1, 2):
        pages = KvPages(geometry(torch.float32), NUM_BLOCKS, torch.float32, CPU)
        for row in rows:
            kept = past[:, :, :, : row.start].contiguous().numpy()
            pages.scatter(row.block_table, KvRange(0, row.start, 0, 2), memoryview(kept.tobytes()))
        kernel = NativeSinkAttention(native_library(NATIVE_SETS[0]), SinkTerms(pages, HEADS, places))
        rope = ROTARY.rows(torch.tensor([30, 300][:count]))
        outs.append(kernel.forward(0, qkv[:count].clone(), rope, None, kernel.prepare(rows[:count]))[0])
    assert torch.equal(*outs)


class _TextRotary:
    """Second rotations that are the first ones: of tokens at ``start`` and after it."""

    def __init__(self, start: int) -> None:
        self.start = start

    def rows(self, places: torch.Tensor) -> RopeRows:
        rows: RopeRows = ROTARY.rows(torch.arange(self.start, self.start + len(places)))
        return rows


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_sinks_and_a_window_that_are_the_whole_context_give_the_golden_bits(
    name: str, dtype: torch.dtype, packed: bool
) -> None:
    """Sinks of whole tiles beside all other tokens, and a second rotation that is the first one: plain attention."""
    library, (qkv, norm) = native_library(name), inputs(dtype)
    unit = key_unit(library, geometry(dtype), dtype) if packed else 0
    for start, num_sinks in ((200, 64), (200, 128), (64, 64)):
        outs, rope, rows = [], ROTARY.rows(torch.arange(start, start + 1)), [RowSpan(0, 1, start, TABLE)]
        for is_plain in (True, False):
            pages = KvPages(geometry(dtype), NUM_BLOCKS, dtype, CPU, unit)
            plain = NativePagedAttention(library, pages, HEADS, [None, None])
            before = [RowSpan(0, start, 0, TABLE)]
            plain.forward(1, qkv[:start].clone(), ROTARY.rows(torch.arange(start)), norm, plain.prepare(before))
            rotary: Any = _TextRotary(start)
            places = CachePlaces(num_sinks, start + 1 - num_sinks, rotary)
            kernel = plain if is_plain else NativeSinkAttention(library, SinkTerms(pages, HEADS, places))
            outs.append(kernel.forward(1, qkv[start : start + 1].clone(), rope, norm, kernel.prepare(rows)))
        assert torch.equal(*outs)
