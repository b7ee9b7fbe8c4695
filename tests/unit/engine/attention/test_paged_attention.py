"""Paged attention against a dense float64 reference, with every way of cutting the work."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention import paged
from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.native import NativePagedAttention
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.tiled import TorchTiledAttention
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

LAYERS, KV_HEADS, GROUP, DIM, BLOCK = 2, 2, 3, 6, 4
GEOMETRY = KvGeometry(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, element_bytes=4)


Windows = tuple[int | None, ...]
KERNELS = ["torch-paged", "torch-tiled", *(f"native-{name}" for name in NATIVE_SETS)]


def make_kernel(name: str, pages: KvPages, num_heads: int, windows: Windows) -> AttentionBackend:
    if name.startswith("native-"):
        return NativePagedAttention(native_library(name.removeprefix("native-")), pages, num_heads, windows)
    kernel = TorchTiledAttention if name == TorchTiledAttention.name else TorchPagedAttention
    return kernel(pages, num_heads, windows)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class World:
    """Pages filled for several contexts, and the dense KV of each."""

    def __init__(
        self,
        shapes: list[tuple[int, int]],
        poison: bool = False,
        windows: Windows = (None,) * LAYERS,
        kernel: str = "torch-paged",
    ) -> None:
        torch.manual_seed(0)
        self.pages = KvPages(GEOMETRY, 400, torch.float32, torch.device("cpu"))
        self.kernel: Any = make_kernel(kernel, self.pages, KV_HEADS * GROUP, windows)
        self.windows = windows
        if poison:
            self.pages.tensor.fill_(1e30)
        free = list(range(400))
        random.Random(1).shuffle(free)
        self.spans, begin = [], 0
        for start, count in shapes:
            table = tuple(free.pop() for _ in range(-(-(start + count) // BLOCK)))
            self.spans.append(RowSpan(begin, count, start, table))
            begin += count
        self.total = begin
        self.dense = [torch.randn(LAYERS, 2, KV_HEADS, span.context, DIM) for span in self.spans]
        self.query = torch.randn(LAYERS, begin, KV_HEADS * GROUP, DIM)
        for span, kv in zip(self.spans, self.dense, strict=True):
            past = kv[:, :, :, : span.start].contiguous().numpy()
            self.pages.scatter(span.block_table, KvRange(0, span.start, 0, LAYERS), memoryview(past.tobytes()))

    def run(self, layer: int) -> torch.Tensor:
        fresh = torch.cat([kv[layer, :, :, s.start :] for s, kv in zip(self.spans, self.dense, strict=True)], 2)
        key, value = (fresh[i].transpose(0, 1).contiguous() for i in (0, 1))
        return self.forward(layer, key, value)

    def forward(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Rotated by nothing, so that the dense reference needs no rotation."""
        qkv = torch.cat((self.query[layer], key, value), 1).view(self.total, -1)
        rope = RopeRows(torch.ones(self.total, DIM), torch.zeros(self.total, DIM))
        return self.kernel.forward(layer, qkv, rope, None, self.kernel.prepare(self.spans))

    def expected(self, layer: int) -> torch.Tensor:
        rows = []
        for span, kv in zip(self.spans, self.dense, strict=True):
            for index in range(span.num_tokens):
                end = span.start + index + 1
                begin = max(0, end - (self.windows[layer] or end))
                for head in range(KV_HEADS * GROUP):
                    key, value = kv[layer, :, head // GROUP, begin:end].double()
                    weights = torch.softmax(key @ self.query[layer, span.begin + index, head].double() / DIM**0.5, 0)
                    rows.append(weights @ value)
        return torch.stack(rows).view(self.total, -1).float()


SHAPES = [(0, 1), (7, 1), (3, 5), (0, 9), (100, 1), (8, 1), (30, 21), (99, 2), (15, 1)]


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("shapes", [SHAPES, [(9, 1), (3, 1)], [(40, 1)], [(0, 17)], [(16, 1), (16, 1)]])
def test_equals_the_dense_reference(shapes: list[tuple[int, int]], layer: int, kernel: str) -> None:
    world = World(shapes, kernel=kernel)
    assert torch.allclose(world.run(layer), world.expected(layer), atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 4, 5, 9, 33, 200])
@pytest.mark.parametrize("shapes", [SHAPES, [(9, 1), (3, 1)], [(40, 1)], [(0, 17)], [(16, 1), (16, 1)], [(64, 40)]])
def test_a_window_hides_older_tokens_in_its_layers_alone(
    shapes: list[tuple[int, int]], window: int, kernel: str
) -> None:
    world = World(shapes, windows=(window, None), poison=True, kernel=kernel)
    for layer in range(LAYERS):
        assert torch.allclose(world.run(layer), world.expected(layer), atol=1e-5)


def test_a_window_gathers_only_the_blocks_that_hold_it() -> None:
    world = World([(400, 1), (390, 1), (200, 8)], windows=(8, None))
    views = world.kernel.prepare(world.spans).views
    windowed = [group.pages.shape[-1] for group in views[8].decode] + [row.pages.shape[-1] for row in views[8].prefill]
    assert windowed == [3, 4]
    assert [group.pages.shape[-1] for group in views[None].decode] == [101]


def test_small_limits_cut_tiles_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "MAX_GATHER_ELEMENTS", 1500)
    monkeypatch.setattr(paged, "MAX_MASK_ELEMENTS", 16)
    world = World([*SHAPES, (20, 70)], windows=(23, 11))
    for layer in range(LAYERS):
        assert torch.allclose(world.run(layer), world.expected(layer), atol=1e-5)


def test_small_limits_cut_gathers_and_tiles_without_changing_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "MAX_GATHER_ELEMENTS", 1500)
    monkeypatch.setattr(paged, "MAX_MASK_ELEMENTS", 16)
    world = World(SHAPES)
    metadata = world.kernel.prepare(world.spans)
    assert len(metadata.views[None].decode) > 2
    assert torch.allclose(world.run(1), world.expected(1), atol=1e-5)


def test_huge_stale_values_behind_a_context_do_not_matter(kernel: str) -> None:
    world = World(SHAPES, poison=True, kernel=kernel)
    assert torch.allclose(world.run(0), world.expected(0), atol=1e-5)


def test_only_the_slots_of_the_rows_are_written(kernel: str) -> None:
    world = World([(3, 2)], kernel=kernel)
    before = world.pages.tensor.clone()
    world.run(1)
    changed = (world.pages.tensor != before).any(-1).nonzero()
    table = world.spans[0].block_table
    assert {(int(b), int(layer), int(offset)) for b, layer, _, _, offset in changed} == {
        (table[0], 1, 3),
        (table[1], 1, 0),
    }


def test_values_that_are_not_finite_never_reach_the_pages(kernel: str) -> None:
    world = World([(3, 2)], kernel=kernel)
    key = torch.full((2, KV_HEADS, DIM), float("nan"))
    world.forward(0, key, torch.full_like(key, float("inf")))
    assert bool(torch.isfinite(world.pages.tensor).all())
