"""Paged attention by Triton kernels: one launch rotates and writes KV, one or two attend.

Rows of one token go through the split decode launch, rows of more through the prefill launch; both read the same
tables.  In exact mode every row goes through one launch of one shape, so that a token's result depends neither on the
batch nor on the chunk.  ``prepare`` lays the index tensors of a step out in one buffer and copies it once; a captured
graph brings its own static tensors instead (``TritonMetadata``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.context_parts import ITEM_FIELDS, ContextParts
from stratos.engine.attention.projections import QkNorm
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.copies import pack_to_device
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.revisions import revised
from stratos.engine.triton_kernels.attention import EXACT_SPLIT, AttentionRows, ExactSlice, Parts, TileShape, attend
from stratos.engine.triton_kernels.rope_kv import rotate_and_store

TARGET_PROGRAMS = 528
"""Decode programs that fill the GPU: four for each of Hopper's 132 multiprocessors."""
MAX_PARTS = 64
HOPPER_SHARED_BYTES = 227 * 1024
EXACT_SCRATCH_BYTES = 1 << 27
"""For sums of parts in exact mode: 16 queries of an 8B model at 256K tokens."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Program shapes of the three uses."""

    decode: TileShape
    prefill: TileShape
    exact: TileShape

    @classmethod
    def for_model(
        cls, dtype: torch.dtype, group: int, head_dim: int, shared_bytes: int = HOPPER_SHARED_BYTES
    ) -> Shapes:
        """The shapes that were fastest on a H100, as far as a stage of K and V fits into a program's shared memory.

        Warp-group products want 64 rows a group.  Stages change no bit of a result; tiles do.  Two are enough for
        decode, where many programs share a multiprocessor: six were slower by a tenth.

        Args:
            dtype: of the products.
            group: query heads of a KV head.
            head_dim: of K and V.
            shared_bytes: most shared memory of one program; the default is a Hopper's.
        """
        padded_group = 1 << (group - 1).bit_length()
        if dtype == torch.float32:
            plain = TileShape(max(16, padded_group), 16, 4, 2)
            return cls(plain, plain, plain)
        tile = 32 if head_dim > 128 else 64

        def first_fitting(*shapes: TileShape) -> TileShape:
            padded = [replace(shape, rows=max(shape.rows, padded_group)) for shape in shapes]
            sizes = [2 * head_dim * (shape.rows + 2 * shape.num_stages * shape.tile) for shape in padded]
            return next((s for s, size in zip(padded, sizes, strict=True) if size <= shared_bytes), padded[-1])

        smaller = (TileShape(64, tile, 4, 3), TileShape(64, tile, 4, 2), TileShape(32, 32, 4, 2))
        largest = TileShape(64, 32, 8, 3) if head_dim > 128 else TileShape(128, 128, 8, 2)
        return cls(
            decode=first_fitting(TileShape(16, 32, 4, 2)),
            prefill=first_fitting(largest, *smaller),
            exact=first_fitting(TileShape(64, tile, 4, 3), TileShape(64, tile, 4, 2)),
        )


@dataclass(frozen=True, slots=True)
class TritonMetadata:
    """Index tensors of one step."""

    slots: Tensor
    """int32 [tokens]: where K and V go, below 0 for nowhere."""
    decode: AttentionRows | None
    """Rows of one token."""
    prefill: AttentionRows | None
    cut: Tensor
    """Bool [tokens]: what ``AttentionBackend.cut`` tells; kernels that write KV raise it."""
    slices: tuple[ExactSlice, ...] = ()
    """Launches of ``prefill`` in exact mode."""


class TritonPagedAttention(AttentionBackend):
    """The GPU's kernel.

    Args:
        pages: the pool; in fp8 it needs ``kv_scales``.
        num_heads: query heads.
        windows: per layer.
        dtype: compute type, where the pages have another one.
        kv_scales: float32 [layers, 2, kv_heads].
        is_exact: results independent of batch and chunk, slower at long contexts.
        splits_kv: split long contexts over programs where few rows decode.
        balances_kv: split each context by its own length, however many rows decode; needs ``splits_kv``.
        has_pdl: kernels are launched as ``dependent_launch`` says; in exact mode only that which writes KV.
        shapes: of programs; chosen by type and head size when absent.
        scores: what the model does with scores; only their scale may be special.
    """

    libraries = ("triton",)

    def __init__(
        self,
        pages: KvPages,
        num_heads: int,
        windows: Sequence[int | None],
        *,
        dtype: torch.dtype | None = None,
        kv_scales: Tensor | None = None,
        is_exact: bool = False,
        splits_kv: bool = True,
        balances_kv: bool = True,
        has_pdl: bool = False,
        shapes: Shapes | None = None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> None:
        assert scores.is_plain
        geometry = pages.geometry
        self._num_heads, self._kv_heads, self._dim = num_heads, geometry.num_kv_heads, geometry.head_dim
        self._block_size, self._device = geometry.block_size, pages.tensor.device
        self._windows, self.is_exact, self.kv_scales = tuple(windows), is_exact, kv_scales
        self._scale = scores.scale_for(self._dim)
        self._splits_kv, self._has_pdl = splits_kv, has_pdl
        self.is_invariant_by_design = is_exact
        kernel = f"triton-paged{'-exact' if is_exact else ''}{'-fp8' if kv_scales is not None else ''}"
        self.name = revised("triton-attention", kernel)
        self._layer_pages = [pages.tensor[:, layer] for layer in range(geometry.num_layers)]
        group = num_heads // self._kv_heads
        self.shapes = shapes or Shapes.for_model(
            dtype or pages.tensor.dtype, group, self._dim, _shared_bytes(self._device)
        )
        self._queries_per_block = {
            shape: shape.rows // (1 << (group - 1).bit_length())
            for shape in (self.shapes.decode, self.shapes.prefill, self.shapes.exact)
        }
        num_programs = max(1, TARGET_PROGRAMS // self._kv_heads)
        self.context_parts: ContextParts | None = None
        """How contexts of decode rows are cut; ``None``: into as many parts as ``num_parts`` says."""
        if balances_kv and splits_kv and not is_exact:
            window = None if None in self._windows else max(w for w in self._windows if w is not None)
            self.context_parts = ContextParts(num_programs, self.shapes.decode.tile, MAX_PARTS, window)
        num_partials = 2 * num_programs * num_heads
        if is_exact:
            num_partials = max(EXACT_SCRATCH_BYTES // (4 * (self._dim + 2)), 1)
        self._acc = torch.empty(num_partials * self._dim, dtype=torch.float32, device=self._device)
        self._stats = torch.empty(num_partials * 2, dtype=torch.float32, device=self._device)

    def num_parts(self, num_rows: int) -> int:
        """Parts of each context for that many rows of one token: by the size of the buffers, not by the contexts."""
        wanted = TARGET_PROGRAMS // (num_rows * self._kv_heads) if self._splits_kv else 1
        return min(MAX_PARTS, 1 << max(0, wanted - 1).bit_length()) if wanted > 1 else 1

    def prepare(self, rows: list[RowSpan]) -> TritonMetadata:
        shape = self.shapes.exact if self.is_exact else self.shapes.prefill
        step = self._queries_per_block[shape]
        decode = [] if self.is_exact else [(index, 0) for index, row in enumerate(rows) if row.num_tokens == 1]
        prefill = [
            (index, first)
            for index, row in enumerate(rows)
            if row.num_tokens > 1 or self.is_exact
            for first in range(0, row.num_tokens, step)
        ]
        contexts_ = np.array([row.context for row in rows], dtype=np.int32)
        items = np.zeros((0, ITEM_FIELDS), dtype=np.int32)
        if self.context_parts is not None and decode:
            places = np.array([index for index, _ in decode], dtype=np.int32)
            items = self.context_parts.items(places, contexts_[places])
        width = max(len(row.block_table) for row in rows)
        tables = np.zeros((len(rows), -(-width // 4) * 4), dtype=np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(row.block_table)] = row.block_table
        begins, counts, contexts, slots, tables_, decode_, prefill_, items_ = pack_to_device(
            [
                np.array([row.begin for row in rows], dtype=np.int32),
                np.array([row.num_tokens for row in rows], dtype=np.int32),
                contexts_,
                self._slots(rows, tables),
                tables,
                np.array(decode, dtype=np.int32).reshape(-1, 2),
                np.array(prefill, dtype=np.int32).reshape(-1, 2),
                items,
            ],
            self._device,
        )
        launches = [
            AttentionRows(
                query_blocks=blocks, query_begins=begins, query_counts=counts, contexts=contexts, block_tables=tables_,
                items=cut,
            )
            if len(blocks)
            else None
            for blocks, cut in ((decode_, items_ if len(items) else None), (prefill_, None))
        ]  # fmt: skip
        exact: tuple[ExactSlice, ...] = ()
        if self.is_exact:
            sizes = [min(step, rows[index].num_tokens - first) for index, first in prefill]
            longest = [rows[index].context for index, _ in prefill]
            begins_ = [rows[index].begin + first for index, first in prefill]
            exact = self.exact_slices(list(zip(begins_, sizes, longest, strict=True)))
        return TritonMetadata(slots, launches[0], launches[1], torch.zeros_like(slots, dtype=torch.bool), exact)

    def decode_metadata(self, slots: Tensor, **tables: Tensor) -> TritonMetadata:
        """Metadata of rows of one token each over tensors that the caller keeps: the fields of ``AttentionRows``."""
        rows, cut = AttentionRows(**tables), torch.zeros_like(slots, dtype=torch.bool)
        if not self.is_exact:
            return TritonMetadata(slots, rows, None, cut)
        longest = rows.block_tables.shape[1] * self._block_size
        blocks = [(token, 1, longest) for token in range(rows.query_blocks.shape[0])]
        return TritonMetadata(slots, None, rows, cut, self.exact_slices(blocks))

    def exact_slices(self, blocks: list[tuple[int, int, int]]) -> tuple[ExactSlice, ...]:
        """Cut query blocks (first token, tokens, context) so that the parts of each slice fit into the scratch."""
        slices: list[ExactSlice] = []
        begin, num_tokens, num_parts = 0, 0, 0
        for index, (_, count, context) in enumerate(blocks):
            parts = max(num_parts, -(-context // EXACT_SPLIT))
            if num_tokens and (num_tokens + count) * parts * self._num_heads * 2 > self._stats.numel():
                slices.append(self._slice(begin, index, blocks[begin][0], num_tokens, num_parts))
                begin, num_tokens, parts = index, 0, -(-context // EXACT_SPLIT)
            num_tokens, num_parts = num_tokens + count, parts
        return (*slices, self._slice(begin, len(blocks), blocks[begin][0], num_tokens, num_parts))

    def _slice(self, begin: int, end: int, first_token: int, num_tokens: int, num_parts: int) -> ExactSlice:
        acc, stats = self._acc, self._stats
        size = num_tokens * num_parts * self._num_heads
        if 2 * size > stats.numel():  # one query block of a context longer than the buffers were made for
            acc, stats = acc.new_empty(size * self._dim), stats.new_empty(size * 2)
        return ExactSlice(begin, end - begin, first_token, num_tokens, num_parts, acc, stats)

    def _slots(self, rows: list[RowSpan], tables: np.ndarray) -> np.ndarray:
        """Slots of all tokens, int32: rows of 2 tokens at 5 and 1 at 9 are rows 0, 0, 1 at positions 5, 6, 9."""
        counts = np.array([row.num_tokens for row in rows])
        shifts = np.array([row.start - row.begin for row in rows])
        positions = np.arange(counts.sum()) + np.repeat(shifts, counts)
        blocks = tables[np.repeat(np.arange(len(rows)), counts), positions // self._block_size]
        slots: np.ndarray = (blocks * self._block_size + positions % self._block_size).astype(np.int32)
        return slots

    def forward(
        self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: TritonMetadata
    ) -> Tensor:
        pages, scales = self._layer_pages[layer], None if self.kv_scales is None else self.kv_scales[layer]
        query = rotate_and_store(
            qkv,
            rope.cos,
            rope.sin,
            None if qk_norm is None else _shifted(qk_norm),
            0.0 if qk_norm is None else qk_norm.eps,
            metadata.slots,
            pages,
            self._num_heads,
            scales,
            cut=metadata.cut,
            has_pdl=self._has_pdl,
        )
        out = torch.empty_like(query)
        if metadata.decode is not None:
            parts = self.parts_of(metadata.decode)
            self.attend_rows(out, query, layer, metadata.decode, self.shapes.decode, scales, parts)
        if metadata.prefill is not None:
            for piece in metadata.slices:
                self.attend_rows(out, query, layer, metadata.prefill, self.shapes.exact, scales, exact=piece)
            if not metadata.slices:
                self.attend_rows(out, query, layer, metadata.prefill, self.shapes.prefill, scales)
        return out.view(out.shape[0], -1)

    def cut(self, metadata: TritonMetadata) -> Tensor:
        return metadata.cut

    def attend_rows(
        self,
        out: Tensor,
        query: Tensor,
        layer: int,
        rows: AttentionRows,
        shape: TileShape,
        scales: Tensor | None,
        parts: Parts | None = None,
        exact: ExactSlice | None = None,
    ) -> None:
        attend(
            out,
            query,
            self._layer_pages[layer],
            rows,
            scale=self._scale,
            window=self._windows[layer],
            shape=shape,
            parts=parts,
            kv_scales=scales,
            exact=exact,
            has_pdl=self._has_pdl and exact is None,
        )

    def parts_of(self, rows: AttentionRows) -> Parts | None:
        """Buffers for the parts of a launch of rows of one token; ``None`` where they are not split."""
        if rows.items is None or self.context_parts is None:
            return self.parts(rows.query_blocks.shape[0])
        num_items = min(rows.items.shape[0], self.context_parts.max_split_items)
        size = num_items * self._num_heads
        acc = self._acc[: size * self._dim].view(num_items, self._num_heads, self._dim)
        return Parts(MAX_PARTS, acc, self._stats[: size * 2].view(num_items, self._num_heads, 2))

    def parts(self, num_rows: int) -> Parts | None:
        """Buffers for the parts of ``num_rows`` contexts; ``None`` where they are not split."""
        count = self.num_parts(num_rows)
        if count == 1:
            return None
        num_parts = num_rows * self._num_heads * count
        acc = self._acc[: num_parts * self._dim].view(num_rows, self._num_heads, count, self._dim)
        return Parts(count, acc, self._stats[: num_parts * 2].view(num_rows, self._num_heads, count, 2))


def _shifted(norm: QkNorm) -> Tensor:
    """Weights with the offset, in float32 where there is one: the kernel computes in it."""
    return norm.weight.float() + norm.offset if norm.offset else norm.weight


def _shared_bytes(device: torch.device) -> int:
    """Most shared memory of one program on a device."""
    if device.type != "cuda":
        return HOPPER_SHARED_BYTES
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)
