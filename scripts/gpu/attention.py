"""The attention kernel alone: GB/s of decode at several batches and contexts, TFLOP/s of prefill, other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from scripts.gpu.rig import Rig, Work
from stratos.core.kv import KvGeometry
from stratos.engine.attention import triton_paged
from stratos.engine.attention.triton_paged import Shapes, TritonPagedAttention
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.triton_kernels.attention import AttentionRows, ExactSlice, TileShape

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
CASES = [(batch, context) for batch in (1, 8, 64) for context in (1024, 8192, 32768)]
MIXED = [32768] * 2 + [512] * 62
"""Contexts of a batch that few long prompts share with many short ones."""
TUNED = [(1, 8192), (64, 1024)]
DECODE_SHAPES = [(tile, warps, stages) for tile in (32, 64, 128) for warps in (4, 8) for stages in (2, 4, 6)]
PREFILL_SHAPES = [(128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2)]
CACHE_BYTES = 1 << 29


def run(rig: Rig) -> None:
    """Section ``attention``."""
    bandwidth = rig.copy_bandwidth()
    rig.record("copy_gb_per_s", round(bandwidth / 1e9, 1))
    rig.record("shapes", default_shapes())
    for batch, context in [(2, 40)] if rig.is_rehearsal else CASES:
        rig.attempt(f"decode_{batch}x{context}", partial(_decode, rig, bandwidth, batch, context))
    for tokens in (24,) if rig.is_rehearsal else (2048, 8192):
        rig.attempt(f"prefill_{tokens}", partial(_prefill, rig, tokens, None))
    batch, context = (2, 40) if rig.is_rehearsal else (8, 8192)
    rig.attempt(f"decode_fp8_{batch}x{context}", lambda: _decode(rig, bandwidth, batch, context, is_fp8=True))
    equal: dict[str, Any] = {"balances_kv": False}
    rig.attempt(f"decode_equal_parts_{batch}x{context}", lambda: _decode(rig, bandwidth, batch, context, **equal))
    rig.attempt(f"decode_exact_{batch}x{context}", lambda: _decode(rig, bandwidth, batch, context, is_exact=True))
    mixed = [40, 3] if rig.is_rehearsal else MIXED
    rig.attempt("decode_mixed", lambda: _decode(rig, bandwidth, len(mixed), max(mixed), contexts=mixed))
    rig.attempt(
        "decode_mixed_equal_parts", lambda: _decode(rig, bandwidth, len(mixed), max(mixed), contexts=mixed, **equal)
    )
    for batch, context in [(2, 40)] if rig.is_rehearsal else TUNED:
        for shape in DECODE_SHAPES[:1] if rig.is_rehearsal else DECODE_SHAPES:
            name = f"tune_decode_{batch}x{context}_tile{shape[0]}_warps{shape[1]}_stages{shape[2]}"
            rig.attempt(name, partial(_decode, rig, bandwidth, batch, context, shape=shape))
    for programs in (8,) if rig.is_rehearsal else (264, 1056):
        rig.attempt(f"tune_programs{programs}", partial(_with_programs, rig, bandwidth, programs))
    for tiles in () if rig.is_rehearsal else PREFILL_SHAPES:
        rig.attempt(f"tune_prefill_{'_'.join(map(str, tiles))}", partial(_prefill, rig, 8192, TileShape(*tiles)))


class _Bench:
    """Pages of as many layers as it takes to outgrow the cache; ``contexts`` differ where they are given."""

    def __init__(
        self, rig: Rig, batch: int, tokens: int, context: int, *, contexts: list[int] | None = None, **options: Any
    ) -> None:
        heads, kv_heads, dim = (4, 2, 16) if rig.is_rehearsal else (HEADS, KV_HEADS, DIM)
        self.is_fp8 = options.pop("is_fp8", False)
        dtype = torch.float8_e4m3fn if self.is_fp8 else rig.dtype
        self.contexts = contexts or [context] * batch
        blocks = -(-context // BLOCK)
        num_blocks = sum(-(-each // BLOCK) for each in self.contexts)
        token_bytes = 2 * kv_heads * dim * dtype.itemsize
        layer_bytes = num_blocks * BLOCK * token_bytes
        layers = 2 if rig.is_rehearsal else max(2, min(32, CACHE_BYTES // layer_bytes))
        geometry = KvGeometry(
            num_layers=layers, num_kv_heads=kv_heads, head_dim=dim, block_size=BLOCK, element_bytes=dtype.itemsize
        )
        pages = KvPages(geometry, num_blocks, dtype, rig.device)
        if not self.is_fp8:
            pages.tensor.normal_()
        if self.is_fp8:
            options["kv_scales"] = torch.ones(layers, 2, kv_heads, device=rig.device)
        self.layers, self.moved_bytes = layers, sum(self.contexts) * token_bytes
        self.kernel = TritonPagedAttention(pages, heads, (None,) * layers, dtype=rig.dtype, **options)
        shuffled, tables = torch.randperm(num_blocks, device=rig.device).to(torch.int32), []
        for part in torch.split(shuffled, [-(-each // BLOCK) for each in self.contexts]):
            tables.append(torch.nn.functional.pad(part, (0, blocks - len(part))))
        self.rows = AttentionRows(
            query_blocks=torch.zeros(0, 2, dtype=torch.int32),
            query_begins=torch.arange(batch, dtype=torch.int32, device=rig.device) * tokens,
            query_counts=torch.full((batch,), tokens, dtype=torch.int32, device=rig.device),
            contexts=torch.tensor(self.contexts, dtype=torch.int32, device=rig.device),
            block_tables=torch.stack(tables),
        )
        self.query = torch.randn(batch * tokens, heads, dim, dtype=rig.dtype, device=rig.device)
        self.out = torch.empty_like(self.query)
        self.flops = 4 * batch * heads * dim * tokens * (context - (tokens - 1) / 2)

    def works(self, shape: TileShape, query_blocks: list[tuple[int, int]], is_split: bool) -> list[Work]:
        """One launch per layer."""
        blocks = torch.tensor(query_blocks, dtype=torch.int32, device=self.query.device)
        rows = replace(self.rows, query_blocks=blocks)
        cut = self.kernel.context_parts
        if is_split and cut is not None:
            # as many items as a captured decode step has, those that it does not need included
            of_rows = np.array([row for row, _ in query_blocks], dtype=np.int32)
            items = cut.items(of_rows, np.array(self.contexts, dtype=np.int32)[of_rows], cut.capacity(len(of_rows)))
            rows = replace(rows, items=torch.from_numpy(items).to(self.query.device))
        parts = self.kernel.parts_of(rows) if is_split else None
        scales = self.kernel.kv_scales

        pieces: Sequence[ExactSlice | None] = [None]
        if self.kernel.is_exact:
            pieces = self.kernel.exact_slices([(row, 1, self.contexts[row]) for row, _ in query_blocks])

        def work(layer: int) -> None:
            layer_scales = None if scales is None else scales[layer]
            for piece in pieces:
                self.kernel.attend_rows(self.out, self.query, layer, rows, shape, layer_scales, parts, piece)

        return [partial(work, layer) for layer in range(self.layers)]

    def difference(self, one: TileShape, other: TileShape, query_blocks: list[tuple[int, int]]) -> float:
        """The largest one between what two program shapes compute."""
        outs = []
        for shape in (one, other):
            self.works(shape, query_blocks, is_split=True)[0]()
            outs.append(self.out.float().clone())
        return round(float((outs[0] - outs[1]).abs().max()), 5)


def _decode(
    rig: Rig, bandwidth: float, batch: int, context: int, shape: tuple[int, int, int] | None = None, **options: Any
) -> dict[str, float]:
    bench = _Bench(rig, batch, 1, context, **options)
    is_exact = options.get("is_exact", False)
    chosen = bench.kernel.shapes.exact if is_exact else bench.kernel.shapes.decode
    rows = [(row, 0) for row in range(batch)]
    differs = {}
    if shape is not None:
        # every shape must come to the same
        differs["differs_by"] = bench.difference(chosen, TileShape(chosen.rows, *shape), rows)
        chosen = TileShape(chosen.rows, *shape)
    seconds = rig.seconds(bench.works(chosen, rows, not is_exact))
    moved = bench.moved_bytes
    return {
        "us": round(seconds * 1e6, 1),
        "gb_per_s": round(moved / seconds / 1e9, 1),
        "share_of_copy": round(moved / seconds / bandwidth, 3),
        **differs,
    }


def _prefill(rig: Rig, tokens: int, shape: TileShape | None) -> dict[str, float]:
    bench = _Bench(rig, 1, tokens, tokens)
    chosen = shape or bench.kernel.shapes.prefill
    per_block = chosen.rows // (2 if rig.is_rehearsal else HEADS // KV_HEADS)
    seconds = rig.seconds(bench.works(chosen, [(0, first) for first in range(0, tokens, per_block)], False)[:2])
    return {"us": round(seconds * 1e6, 1), "tflop_per_s": round(bench.flops / seconds / 1e12, 1)}


def _with_programs(rig: Rig, bandwidth: float, num_programs: int) -> dict[str, Any]:
    """Decode with another number of programs to fill the device with."""
    before, triton_paged.TARGET_PROGRAMS = triton_paged.TARGET_PROGRAMS, num_programs
    try:
        cases = [(2, 40)] if rig.is_rehearsal else [(1, 1024), (1, 8192), (8, 8192)]
        return {f"{b}x{c}": _decode(rig, bandwidth, b, c)["share_of_copy"] for b, c in cases}
    finally:
        triton_paged.TARGET_PROGRAMS = before


def default_shapes() -> dict[str, Any]:
    """The shapes that the numbers without ``tune`` were measured with."""
    shapes = Shapes.for_model(torch.bfloat16, HEADS // KV_HEADS, DIM)
    return {name: str(getattr(shapes, name)) for name in ("decode", "prefill", "exact")}
