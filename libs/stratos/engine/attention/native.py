"""Paged attention by the C++ kernel: one call per layer, arguments prepared once per step.

The kernel walks every context in tiles that begin at fixed positions, in order, so that a token's result does not
depend on chunks, neighbours or threads; attention.cpp tells how.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.projections import QkNorm
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_codes import with_codes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import DTYPE_CODES, AttentionStep
from stratos.engine.revisions import revised

MAX_HEAD_DIM = 1024
"""The kernel holds one head in registers and on its stack."""
_ITEM_FIELDS = 6
SPARE_ENTRIES = 8
"""Blocks that the tables of a step have room for beyond those of each row, so that it can be kept as they grow."""


def key_unit(library: NativeLibrary, geometry: KvGeometry, dtype: torch.dtype) -> int:
    """Elements of a unit of packed pages where ``dtype`` is computed, 0 where the kernels read only plain ones."""
    if not library.packs_keys(geometry.head_dim, geometry.block_size):
        return 0
    unit: int = library.key_unit(DTYPE_CODES[dtype])
    return unit


@dataclass(slots=True)
class NativeStep:
    """Arguments of one step, and what keeps their memory alive."""

    arguments: AttentionStep
    pointer: object
    facts: np.ndarray
    """int64 [rows, 4]: begin, tokens, start, and where its table lies in ``tables``."""
    tables: np.ndarray
    buffers: tuple[np.ndarray | Tensor, ...]
    rope: RopeRows | None = None

    def move(self, spans: Sequence[RowSpan], grown: Sequence[int]) -> bool:
        """Let rows of one token each be those of ``spans``; ``False``: a table in ``grown`` has no room."""
        starts = self.facts.data
        for index, span in enumerate(spans):
            starts[index, 2] = span.start
        for index in grown:
            table, begin = spans[index].block_table, int(self.facts[index, 3])
            end = len(self.tables) if index + 1 == len(self.facts) else int(self.facts[index + 1, 3])
            if begin + len(table) > end:
                return False
            self.tables[begin : begin + len(table)] = table
        return True


class NativePagedAttention(AttentionBackend):
    """Bound to one pool on CPU.

    Args:
        library: the compiled kernels.
        pages: the KV pool.
        num_heads: query heads.
        windows: sliding window of each layer.
        dtype: what is computed; given where pages hold codes.
        scores: what the model does with scores.
    """

    is_invariant_by_design = True
    libraries = ()
    can_move = True
    """Results of ``unplanned`` can be kept for a step whose rows are each a token further."""

    def __init__(
        self,
        library: NativeLibrary,
        pages: KvPages,
        num_heads: int,
        windows: Sequence[int | None],
        dtype: torch.dtype | None = None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> None:
        geometry = pages.geometry
        assert len(windows) == geometry.num_layers
        self.name = with_codes(revised("native-attention", f"native-{library.isa}"), pages.codes)
        self._codes = pages.codes.number if pages.codes else 0
        self._library, self._pages, self._is_packed = library, pages.tensor, int(pages.key_unit > 0)
        self._dtype = DTYPE_CODES[dtype or pages.tensor.dtype]
        self._windows, self._scores = [window or 0 for window in windows], scores
        self._num_heads, self._kv_heads = num_heads, geometry.num_kv_heads
        self._head_dim, self._block_size = geometry.head_dim, geometry.block_size
        self._scratch_bytes = library.scratch_bytes(geometry.head_dim)
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def prepare(self, rows: list[RowSpan]) -> NativeStep:
        step = self.unplanned(rows)
        self._library.plan(step.pointer)
        return step

    def unplanned(self, rows: list[RowSpan]) -> NativeStep:
        """Result of ``prepare`` before the library has filled in its plan."""
        num_tokens, threads = rows[-1].begin + rows[-1].num_tokens, torch.get_num_threads()
        facts = np.empty((len(rows), 4), dtype=np.int64)
        num_entries = 0
        for index, row in enumerate(rows):
            facts[index] = row.begin, row.num_tokens, row.start, num_entries
            num_entries += len(row.block_table) + SPARE_ENTRIES
        tables = np.zeros(num_entries, dtype=np.int64)
        for row, begin in zip(rows, facts[:, 3].tolist(), strict=True):
            tables[begin : begin + len(row.block_table)] = row.block_table
        slots = np.empty(num_tokens, dtype=np.int64)
        items = np.empty(num_tokens * self._kv_heads * _ITEM_FIELDS, dtype=np.int64)
        if self._scratch.numel() < threads * self._scratch_bytes:
            self._scratch = torch.empty(threads * self._scratch_bytes, dtype=torch.uint8)
        step = self._arguments(len(rows), num_tokens, threads)
        step.rows, step.tables = facts.ctypes.data, tables.ctypes.data
        step.slots, step.items = slots.ctypes.data, items.ctypes.data
        return NativeStep(step, ctypes.byref(step), facts, tables, (slots, items))

    def _arguments(self, num_rows: int, num_tokens: int, threads: int) -> AttentionStep:
        block, layer, kv, head, _, _ = self._pages.stride()
        kv = kv if self._pages.shape[2] == 2 else 0
        return AttentionStep(
            pages=self._pages.data_ptr(),
            scratch=self._scratch.data_ptr(),
            scratch_bytes=self._scratch_bytes,
            block_stride=block,
            layer_stride=layer,
            kv_stride=kv,
            head_stride=head,
            num_rows=num_rows,
            num_tokens=num_tokens,
            num_heads=self._num_heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            block_size=self._block_size,
            dtype=self._dtype,
            threads=threads,
            is_packed=self._is_packed,
            codes=self._codes,
            row=self._pages.shape[-1],
            sinks=None if self._scores.sinks is None else self._scores.sinks.data_ptr(),
            scale=self._scores.scale_for(self._head_dim),
            cap=self._scores.cap,
        )

    def forward(self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: NativeStep) -> Tensor:
        # q in ``qkv`` is rotated in place
        step = metadata.arguments
        if metadata.rope is not rope:
            metadata.rope = rope
            step.cos, step.sin = rope.cos.data_ptr(), rope.sin.data_ptr()
        norm = None
        if qk_norm is not None:
            norm, step.norm_eps, step.norm_offset = qk_norm.weight.data_ptr(), qk_norm.eps, qk_norm.offset
        out = qkv.new_empty(qkv.shape[0], self._num_heads * self._head_dim)
        self._library.attention(metadata.pointer, layer, self._windows[layer], qkv.data_ptr(), out.data_ptr(), norm)
        return out
