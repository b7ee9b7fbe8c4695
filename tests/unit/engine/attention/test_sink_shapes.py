"""StreamingLLM by the C++ kernel over odd shapes: torch's numbers, and no look at blocks that were released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import key_unit
from stratos.engine.attention.native_sinks import NativeSinkAttention
from stratos.engine.attention.sinks import CachePlaces, SinkPagedAttention, SinkTerms
from stratos.engine.checkpoint.rope_config import RopeConfig
from stratos.engine.kv_cache.window import KvWindow
from stratos.engine.layers.rotary import RotaryTable, StreamingRotary
from stratos.engine.memory.kv_pages import KvPages
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
CPU = torch.device("cpu")
LENGTHS, CHUNKS = (170, 60), (1, 1, 40, 5, 70, 1, 17, 1, 64)
"""Tokens of two sequences, whose rows alternate with those of the other, and of their rows in turn."""


@dataclass(frozen=True)
class Shape:
    """Shape of a model and its pages."""

    dim: int
    kv_heads: int
    group: int
    block: int
    sinks: int
    window: int
    dtype: torch.dtype = torch.float32


SHAPES = [
    Shape(2, 1, 1, 1, 1, 1),
    Shape(6, 2, 1, 5, 7, 3),
    Shape(10, 1, 13, 4, 65, 16, torch.bfloat16),
    Shape(18, 3, 7, 5, 3, 64, torch.float16),
    Shape(80, 1, 8, 16, 16, 33, torch.bfloat16),
    Shape(96, 2, 5, 48, 63, 65),
    Shape(160, 1, 2, 32, 100, 17),
]


class _Run:
    """Sequences of one shape over a pool of their own, in blocks out of order."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.rotary = shape, RotaryTable(RopeConfig(), shape.dim, 512, CPU)
        self.geometry = KvGeometry(
            num_layers=1, num_kv_heads=shape.kv_heads, head_dim=shape.dim, block_size=shape.block,
            element_bytes=shape.dtype.itemsize,
        )  # fmt: skip
        self.window = KvWindow(shape.window, shape.sinks, shape.block, max_step_tokens=1)
        counts = [-(-length // shape.block) for length in LENGTHS]
        places = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)).tolist()
        self.tables = [tuple(places[: counts[0]]), tuple(places[counts[0] :])]
        width = shape.kv_heads * (shape.group + 2) * shape.dim
        torch.manual_seed(2)
        self.inputs = [torch.randn(length, width).to(shape.dtype) for length in LENGTHS]

    def terms(self, unit: int = 0) -> SinkTerms:
        shape, num_blocks, rotary = self.shape, sum(map(len, self.tables)), cast("StreamingRotary", self.rotary)
        pages = KvPages(self.geometry, num_blocks, shape.dtype, CPU, unit)
        places = CachePlaces(shape.sinks, shape.window, rotary)
        return SinkTerms(pages, shape.kv_heads * shape.group, places)

    def step(self, kernel: Any, which: int, start: int, count: int, table: tuple[int, ...]) -> torch.Tensor:
        rows, rope = [RowSpan(0, count, start, table)], self.rotary.rows(torch.arange(start, start + count))
        qkv = self.inputs[which][start : start + count].clone()
        out: torch.Tensor = kernel.forward(0, qkv, rope, None, kernel.prepare(rows))
        return out

    def chunks(self, kernel: NativeSinkAttention, pages: KvPages) -> list[torch.Tensor]:
        """Rows by turns; blocks that no token sees any more become NaN, and a held one stands for them."""
        done, outs = [0, 0], [list[torch.Tensor](), list[torch.Tensor]()]
        for turn, count in enumerate(CHUNKS * 4):
            which = turn % 2
            start, count = done[which], min(count, LENGTHS[which] - done[which])
            if not count:
                continue
            table = list(self.tables[which][: -(-(start + count) // self.shape.block)])
            head, first = self.window.num_head_blocks, self.window.first_block(start)
            table[head:first] = [table[min(first, len(table) - 1)]] * (min(first, len(table)) - head)
            outs[which].append(self.step(kernel, which, start, count, tuple(table)))
            done[which] += count
            for block in self.tables[which][head : self.window.first_block(done[which])]:
                pages.tensor[block] = torch.nan
        assert tuple(done) == LENGTHS
        return [torch.cat(parts) for parts in outs]


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_shapes_have_torchs_numbers_and_released_blocks_are_not_read(shape: Shape, name: str) -> None:
    made, library = _Run(shape), native_library(name)
    expected = SinkPagedAttention(made.terms())
    wholes = [made.step(expected, which, 0, length, made.tables[which]) for which, length in enumerate(LENGTHS)]
    atol = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}[shape.dtype]
    for unit in {0, key_unit(library, made.geometry, shape.dtype)}:
        terms, alone = made.terms(unit), NativeSinkAttention(library, made.terms(unit))
        found = made.chunks(NativeSinkAttention(library, terms), terms.pages)
        for which, whole in enumerate(wholes):
            torch.testing.assert_close(found[which], whole, rtol=2e-2, atol=atol)
            assert torch.equal(found[which], made.step(alone, which, 0, LENGTHS[which], made.tables[which]))
