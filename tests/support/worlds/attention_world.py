"""Inputs of one launch of the Triton attention kernel, and what its reference makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tests.support.reference.triton_interpreter import DEVICE  # before anything that imports Triton
from stratos.engine.attention.context_parts import ContextParts
from stratos.engine.triton_kernels import attention
from stratos.engine.triton_kernels.attention import AttentionRows, ExactSlice, Parts, TileShape, attend
from tests.support.reference import attention_reference

BLOCK, LAYER, LAYERS = 4, 1, 2


@dataclass
class World:
    """Rows (queries, context) of one launch, with padding rows after them."""

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
        parts, rows = None, self.rows(shape)
        if cut := options.pop("cut", None):
            rows, parts = self.cut(rows, cut)
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
            rows,
            scale=0.3,
            shape=shape,
            parts=parts,
            kv_scales=self.scales,
            **options,
        )
        return out

    def cut(self, rows: AttentionRows, cut: ContextParts) -> tuple[AttentionRows, Parts]:
        """One program per item: rows of one query, each in as many parts as its length asks for."""
        contexts = np.array([context for _, _, context in self.spans])
        items = cut.items(np.arange(len(contexts)), contexts, cut.capacity(len(contexts)))
        shape = (min(len(items), cut.max_split_items), *self.query.shape[1:])
        acc = torch.full(shape, float("nan"), device=DEVICE)
        stats = torch.full((*shape[:2], 2), float("nan"), device=DEVICE)
        return replace(rows, items=_int32(items)), Parts(cut.max_parts, acc, stats)

    def exact(self, shape: TileShape) -> ExactSlice:
        tokens, heads, dim = self.query.shape
        num_parts = 1 + max(-(-context // attention.EXACT_SPLIT) for _, _, context in self.spans)
        acc = torch.full((tokens, heads, num_parts, dim), float("nan"), device=DEVICE)
        stats = torch.full((tokens, heads, num_parts, 2), float("nan"), device=DEVICE)
        return ExactSlice(0, len(self.rows(shape).query_blocks), 0, tokens, num_parts, acc, stats)

    def expected(self, window: int | None = None) -> torch.Tensor:
        return attention_reference.attend(
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
