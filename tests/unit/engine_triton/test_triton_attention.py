"""The attention kernel against its reference, in the interpreter where there is no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from triton_interpreter import DEVICE

from stratos.engine.triton_kernels import attention, reference
from stratos.engine.triton_kernels.attention import AttentionRows, ExactSlice, Parts, TileShape, attend

BLOCK, LAYER, LAYERS = 4, 1, 2
DECODE = TileShape(16, 16, 4, 2)
PREFILL = TileShape(32, 16, 4, 2)
DECODES = [(1, 1), (1, 7), (1, 40), (1, 16), (1, 17)]
MIXED = [(5, 9), (21, 21), (1, 40), (17, 30)]


@dataclass
class World:
    """Rows (queries, context) of one launch, with padding rows behind them."""

    shapes: list[tuple[int, int]]
    kv_heads: int = 2
    group: int = 3
    dim: int = 10
    padding: int = 0
    is_fp8: bool = False
    num_blocks: int = 64

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        pages = torch.randn(self.num_blocks, LAYERS, 2, self.kv_heads, BLOCK, self.dim)
        self.scales = torch.rand(2, self.kv_heads).to(DEVICE) + 0.5 if self.is_fp8 else None
        self.pages = (pages.to(torch.float8_e4m3fn) if self.is_fp8 else pages).to(DEVICE)
        free = torch.randperm(self.num_blocks).tolist()
        width = 1 + max(-(-context // BLOCK) for _, context in self.shapes)
        self.tables = torch.full((len(self.shapes) + self.padding, width), -1, dtype=torch.int32)
        self.spans, begin = [], 0
        for row, (count, context) in enumerate(self.shapes):
            self.spans.append((begin, count, context))
            begin += count
            for index in range(-(-context // BLOCK)):
                self.tables[row, index] = free.pop()
        self.spans += [(begin + index, 1, 0) for index in range(self.padding)]
        self.tables = self.tables.to(DEVICE)
        self.query = torch.randn(begin + self.padding, self.kv_heads * self.group, self.dim).to(DEVICE)

    def rows(self, shape: TileShape) -> AttentionRows:
        per_block = shape.rows // (1 << (self.group - 1).bit_length())
        blocks = [(row, first) for row, (_, n, _) in enumerate(self.spans) for first in range(0, n, per_block)]
        begins, counts, contexts = zip(*self.spans, strict=True)
        return AttentionRows(
            query_blocks=_int32(blocks),
            query_begins=_int32(begins),
            query_counts=_int32(counts),
            contexts=_int32(contexts),
            block_tables=self.tables,
        )

    def run(self, shape: TileShape, num_parts: int = 0, **options: Any) -> torch.Tensor:
        out = torch.full_like(self.query, float("nan"))
        parts = None
        if num_parts:
            tokens, heads, dim = self.query.shape
            acc = torch.full((tokens, heads, num_parts, dim), float("nan"), device=DEVICE)
            parts = Parts(num_parts, acc, torch.full((tokens, heads, num_parts, 2), float("nan"), device=DEVICE))
        options = {"window": None, **options}
        if options.pop("is_exact", False):
            options["exact"] = self.exact(shape)
        attend(
            out,
            self.query,
            self.pages[:, LAYER],
            self.rows(shape),
            scale=0.3,
            shape=shape,
            parts=parts,
            kv_scales=self.scales,
            **options,
        )
        return out

    def exact(self, shape: TileShape) -> ExactSlice:
        tokens, heads, dim = self.query.shape
        num_parts = 1 + max(-(-context // attention.EXACT_SPLIT) for _, _, context in self.spans)
        acc = torch.full((tokens, heads, num_parts, dim), float("nan"), device=DEVICE)
        stats = torch.full((tokens, heads, num_parts, 2), float("nan"), device=DEVICE)
        return ExactSlice(0, len(self.rows(shape).query_blocks), 0, tokens, num_parts, acc, stats)

    def expected(self, window: int | None = None) -> torch.Tensor:
        return reference.attend(
            self.query,
            self.pages[:, LAYER],
            self.spans,
            self.tables,
            scale=0.3,
            window=window,
            kv_scales=self.scales,
        )


def _int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("num_parts", [0, 4])
@pytest.mark.parametrize("window", [None, 1, 9, 16, 200])
def test_decode_rows_split_or_not(num_parts: int, window: int | None) -> None:
    world = World(DECODES, padding=2)
    assert _close(world.run(DECODE, num_parts, window=window), world.expected(window))


@pytest.mark.parametrize("window", [None, 6, 17])
@pytest.mark.parametrize(("kv_heads", "group", "dim"), [(2, 3, 10), (1, 7, 16), (3, 1, 24)])
def test_rows_of_many_queries(kv_heads: int, group: int, dim: int, window: int | None) -> None:
    world = World(MIXED, kv_heads, group, dim)
    assert _close(world.run(PREFILL, window=window), world.expected(window))


@pytest.mark.parametrize(("shapes", "shape", "num_parts"), [(DECODES, DECODE, 4), (MIXED, PREFILL, 0)])
def test_pages_in_fp8_are_scaled(shapes: list[tuple[int, int]], shape: TileShape, num_parts: int) -> None:
    world = World(shapes, dim=16, is_fp8=True)
    assert _close(world.run(shape, num_parts), world.expected())


@pytest.mark.parametrize("window", [None, 11])
def test_exact_results_depend_on_neither_batch_nor_chunk(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "EXACT_SPLIT", 16)
    world = World([(40, 40), (1, 44), (3, 70)], padding=1)
    whole = world.run(PREFILL, is_exact=True, window=window)
    assert _close(whole, world.expected(window))
    query, tables = world.query, world.tables
    for chunk in (1, 7, 16, 40):
        for end in range(chunk, 41, max(13, 2 * chunk)):
            world.query, world.spans, world.tables = query[end - chunk : end], [(0, chunk, end)], tables[:1]
            assert torch.equal(world.run(PREFILL, is_exact=True, window=window), whole[end - chunk : end])


def test_stale_values_behind_a_context_do_not_matter() -> None:
    world = World(DECODES)
    expected = world.expected()
    for row, (_, _, context) in enumerate(world.spans):
        if context % BLOCK:
            world.pages[world.tables[row, context // BLOCK].long(), :, :, :, context % BLOCK :] = float("nan")
    assert _close(world.run(DECODE, 2), expected)
