"""The attention kernel against its reference, in the interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from stratos.engine.attention.context_parts import ContextParts
from stratos.engine.triton_kernels import attention
from stratos.engine.triton_kernels.attention import TileShape
from tests.support.worlds.attention_world import BLOCK, World

DECODE = TileShape(16, 16, 4, 2)
PREFILL = TileShape(32, 16, 4, 2)
DECODES = [(1, 1), (1, 7), (1, 40), (1, 16), (1, 17)]
MIXED = [(5, 9), (21, 21), (1, 40), (17, 30)]


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("num_parts", [0, 4])
@pytest.mark.parametrize("window", [None, 1, 9, 16, 200])
def test_decode_rows_split_or_not(num_parts: int, window: int | None) -> None:
    world = World(DECODES, padding=2)
    assert _close(world.run(DECODE, num_parts, window=window), world.expected(window))


@pytest.mark.parametrize(("window", "is_fp8"), [(None, False), (20, False), (None, True)])
def test_contexts_are_split_by_their_lengths(window: int | None, is_fp8: bool) -> None:
    world = World([(1, 1), (1, 7), (1, 150), (1, 90), (1, 16)], dim=16, padding=1, num_blocks=80, is_fp8=is_fp8)
    cut = ContextParts(6, DECODE.tile, max_parts=4)
    assert _close(world.run(DECODE, window=window, cut=cut), world.expected(window))


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
    world = World([(24, 24), (1, 30), (2, 50)], kv_heads=1, padding=1)
    whole = world.run(PREFILL, is_exact=True, window=window)
    assert _close(whole, world.expected(window))
    query, tables = world.query, world.tables
    for chunk, ends in ((1, (1, 17, 24)), (7, (7, 21)), (16, (16, 24))):
        for end in ends:
            world.query, world.spans, world.tables = query[end - chunk : end], [(0, chunk, end)], tables[:1]
            assert torch.equal(world.run(PREFILL, is_exact=True, window=window), whole[end - chunk : end])


def test_stale_values_behind_a_context_do_not_matter() -> None:
    world = World(DECODES)
    expected = world.expected()
    for row, (_, _, context) in enumerate(world.spans):
        if context % BLOCK:
            world.pages[world.tables[row, context // BLOCK].long(), :, :, :, context % BLOCK :] = float("nan")
    assert _close(world.run(DECODE, 2), expected)
