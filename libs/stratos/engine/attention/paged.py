"""Paged attention in pure torch: gather a context's pages into a contiguous run, then one SDPA call.

Decode rows (one token) are batched: sorted by context, grouped so that padding stays below half of the work, gathered
through a padded block table and masked.  Rows with more tokens run one by one, in tiles of queries with the causal
mask.  The heads of a KV group become queries (decode) or a broadcast axis (prefill), so K and V are never repeated.
A layer with a sliding window gathers only the blocks that hold it; layers with equal windows share their indices.

The pool is seen as rows of one block and one head: the gather of a context is one ``index_select`` whose result already
is ``[K or V, row, kv_head, token, head_dim]``.  Index tensors are built for layer 0, other layers shift the view.
Gathers are split by KV heads above ``MAX_GATHER_ELEMENTS``, so a long context costs time, not memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.projections import QkNorm, rotated_heads
from stratos.engine.attention.torch_base import TorchAttention
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.revisions import revised

MAX_GATHER_ELEMENTS = 1 << 24
"""K and V elements of one gather: 64 MiB in float32."""
MAX_MASK_ELEMENTS = 1 << 20
MAX_QUERY_TILE = 256
GROUP_SLACK_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one token that see similarly many tokens."""

    tokens: Tensor | None
    """Their places in the flat batch, int64 [rows]; ``None`` when they are the whole batch in order."""
    pages: Tensor
    """Page rows of layer 0, int64 [2, rows, kv_heads, blocks]."""
    length: int
    """Maximum number of tokens that a row gathers, from the first block that it sees."""
    mask: Tensor | None
    """Additive, [rows, 1, 1, length]; ``None`` when every row sees all of them."""


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One row of several tokens."""

    span: RowSpan
    first: int
    """Absolute position of the first token gathered."""
    window: int | None
    pages: Tensor
    """Page rows of layer 0, int64 [2, 1, kv_heads, blocks]."""


@dataclass(frozen=True, slots=True)
class ContextView:
    """View of a step's rows in layers of one window."""

    decode: list[DecodeGroup]
    prefill: list[PrefillRow]


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """Index tensors of one step."""

    slots: Tensor
    """Where K and V of each token go, rows of head_dim of layer 0: int64 [tokens * 2 * kv_heads]."""
    views: dict[int | None, ContextView]
    """By window."""


class TorchPagedAttention(TorchAttention):
    """The portable kernel; slower than a native one."""

    name = revised("torch-attention", "torch-paged")

    # -- once per step -------------------------------------------------------------------------------

    def prepare(self, rows: list[RowSpan]) -> PagedMetadata:
        views = {window: self._view(rows, window) for window in set(self._windows)}
        return PagedMetadata(self._written_slots(rows), views)

    def _view(self, rows: list[RowSpan], window: int | None) -> ContextView:
        decode = sorted((row for row in rows if row.num_tokens == 1), key=lambda row: self._length(row, window))
        is_whole = len(decode) == len(rows)
        groups = list(self._grouped(decode, window))
        return ContextView(
            [self._decode_group(group, window, is_all=is_whole and len(groups) == 1) for group in groups],
            [self._prefill_row(row, window) for row in rows if row.num_tokens > 1],
        )

    def _first_block(self, row: RowSpan, window: int | None) -> int:
        """Index in the block table of the first block that the row's first token sees."""
        return 0 if window is None else max(0, row.start + 1 - window) // self._block_size

    def _length(self, row: RowSpan, window: int | None) -> int:
        """Tokens of the context from that block on."""
        return row.context - self._first_block(row, window) * self._block_size

    def _prefill_row(self, row: RowSpan, window: int | None) -> PrefillRow:
        first = self._first_block(row, window)
        return PrefillRow(row, first * self._block_size, window, self._pages([row], [first], self._length(row, window)))

    def _pages(self, rows: list[RowSpan], first_blocks: list[int], length: int) -> Tensor:
        """Page rows of several contexts; short ones are padded with their own first block, which the mask hides."""
        num_blocks = -(-length // self._block_size)
        table = np.empty((len(rows), num_blocks), dtype=np.int64)
        for index, (row, first) in enumerate(zip(rows, first_blocks, strict=True)):
            own = row.block_table[first : first + num_blocks]
            table[index, : len(own)] = own
            table[index, len(own) :] = own[0]
        heads = np.arange(self._layer_rows).reshape(2, 1, self._kv_heads, 1)
        return torch.from_numpy(table[None, :, None, :] * self._block_rows + heads).to(self._device)

    def _grouped(self, rows: list[RowSpan], window: int | None) -> Iterator[list[RowSpan]]:
        """Cut rows, sorted by length, where padding or the gather would become too large."""
        group: list[RowSpan] = []
        token_elements = self._layer_rows * self._head_dim
        for row in rows:
            if group:
                length = self._length(row, window)
                limit = self._length(group[0], window) * 3 // 2 + GROUP_SLACK_BLOCKS * self._block_size
                elements = (len(group) + 1) * length * token_elements
                if length > limit or elements > MAX_GATHER_ELEMENTS:
                    yield group
                    group = []
            group.append(row)
        if group:
            yield group

    def _decode_group(self, rows: list[RowSpan], window: int | None, *, is_all: bool) -> DecodeGroup:
        length = self._length(rows[-1], window)
        if is_all:
            rows = sorted(rows, key=lambda row: row.begin)
        first_blocks = [self._first_block(row, window) for row in rows]
        ends = np.array([self._length(row, window) for row in rows])
        begins = np.maximum(0, ends - window) if window is not None else np.zeros_like(ends)
        mask = None
        if (ends != length).any() or begins.any():
            places = np.arange(length)
            is_hidden = torch.from_numpy((places >= ends[:, None]) | (places < begins[:, None])).to(self._device)
            mask = torch.zeros(is_hidden.shape, dtype=self._dtype, device=self._device)
            mask = mask.masked_fill_(is_hidden, -torch.inf)[:, None, None, :]
        tokens = None if is_all else torch.tensor([row.begin for row in rows], device=self._device)
        return DecodeGroup(tokens, self._pages(rows, first_blocks, length), length, mask)

    # -- once per layer ------------------------------------------------------------------------------

    def forward(
        self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: PagedMetadata
    ) -> Tensor:
        query, key, value = rotated_heads(qkv, rope, qk_norm, self._num_heads, self._head_dim)
        is_cut = self._write(layer, metadata.slots, key, value)
        page_rows = self._page_rows[layer * self._layer_rows :]
        view = metadata.views[self._windows[layer]]
        if not view.prefill and len(view.decode) == 1 and view.decode[0].tokens is None:
            return self._decode(layer, view.decode[0], query, page_rows).masked_fill_(is_cut, torch.nan)
        out = query.new_empty(query.shape[0], self._num_heads * self._head_dim)
        for group in view.decode:
            assert group.tokens is not None
            rows = self._decode(layer, group, query.index_select(0, group.tokens), page_rows)
            out.index_copy_(0, group.tokens, rows)
        for row in view.prefill:
            self._prefill(layer, row, query, page_rows, out)
        return out.masked_fill_(is_cut, torch.nan)

    def _gathered(self, pages: Tensor, page_rows: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """K and V [rows, kv_heads, tokens, head_dim] of as many KV heads at a time as memory allows."""
        per_head = pages.numel() // self._kv_heads * self._block_size * self._head_dim
        step = max(1, min(self._kv_heads, MAX_GATHER_ELEMENTS // per_head))
        for first in range(0, self._kv_heads, step):
            heads = slice(first, min(first + step, self._kv_heads))
            index = pages[:, :, heads]
            run = self._read(page_rows, index.reshape(-1))
            key, value = run.view(*index.shape[:3], -1, self._head_dim).unbind(0)
            yield heads, key, value

    def _decode(self, layer: int, group: DecodeGroup, query: Tensor, page_rows: Tensor) -> Tensor:
        grouped = query.reshape(query.shape[0], self._kv_heads, -1, self._head_dim)
        parts = [
            self._attend(
                layer,
                heads,
                grouped[:, heads].unsqueeze(3),
                key[:, :, : group.length].unsqueeze(2),
                value[:, :, : group.length].unsqueeze(2),
                None if group.mask is None else group.mask.unsqueeze(2),
            ).squeeze(3)
            if not self._scores.is_plain
            else F.scaled_dot_product_attention(
                grouped[:, heads],
                key[:, :, : group.length],
                value[:, :, : group.length],
                attn_mask=group.mask,
                scale=self._scale,
            )
            for heads, key, value in self._gathered(group.pages, page_rows)
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return out.reshape(query.shape[0], -1)

    def _attend(
        self, layer: int, heads: slice, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of some KV heads with capped scores or sinks; shapes as of ``ScoreOptions.attend``."""
        scores = self._scores
        if scores.sinks is not None:
            sinks = scores.sinks[layer].view(self._kv_heads, -1)[heads].reshape(1, -1)
            scores, layer = replace(scores, sinks=sinks), 0
        return scores.attend(query, key, value, mask, layer)

    def _prefill(self, layer: int, row: PrefillRow, query: Tensor, page_rows: Tensor, out: Tensor) -> None:
        span, group_size = row.span, self._num_heads // self._kv_heads
        tokens = slice(span.begin, span.begin + span.num_tokens)
        # [kv_heads, group, tokens, head_dim]: the KV head is the batch axis, its query heads share K and V
        queries = query[tokens].view(-1, self._kv_heads, group_size, self._head_dim).permute(1, 2, 0, 3)
        outs = out[tokens].view(-1, self._kv_heads, group_size, self._head_dim).permute(1, 2, 0, 3)
        for heads, key, value in self._gathered(row.pages, page_rows):
            for begin, end in self._tiles(span):
                seen = self._seen(row, begin, end)
                shape = (-1, group_size, seen.stop - seen.start, self._head_dim)
                mask = self._causal_mask(row, begin, end, seen)
                if not self._scores.is_plain:
                    mask = self._full_mask(end - begin, seen) if mask is None else mask
                    tile = queries[heads, :, begin:end]
                    keys, values = (part[0, :, seen].unsqueeze(1) for part in (key, value))
                    outs[heads, :, begin:end] = self._attend(layer, heads, tile, keys, values, mask)
                    continue
                outs[heads, :, begin:end] = F.scaled_dot_product_attention(
                    queries[heads, :, begin:end],
                    key[0, :, seen].unsqueeze(1).expand(shape),
                    value[0, :, seen].unsqueeze(1).expand(shape),
                    attn_mask=mask,
                    is_causal=mask is None,
                    scale=self._scale,
                )

    def _full_mask(self, num_queries: int, seen: slice) -> Tensor:
        """Additive causal mask [queries, seen] of queries that see nothing before their tile."""
        shape = (num_queries, seen.stop - seen.start)
        return torch.full(shape, -torch.inf, dtype=self._dtype, device=self._device).triu_(1)

    @staticmethod
    def _tiles(span: RowSpan) -> Iterator[tuple[int, int]]:
        size = max(16, min(MAX_QUERY_TILE, MAX_MASK_ELEMENTS // span.context))
        for begin in range(0, span.num_tokens, size):
            yield begin, min(begin + size, span.num_tokens)

    @staticmethod
    def _seen(row: PrefillRow, begin: int, end: int) -> slice:
        """Places, in the gathered run, of the tokens that queries ``begin`` to ``end`` of the row see."""
        start = row.span.start - row.first
        return slice(0 if row.window is None else max(0, start + begin + 1 - row.window), start + end)

    def _causal_mask(self, row: PrefillRow, begin: int, end: int, seen: slice) -> Tensor | None:
        """Additive mask [queries, seen]; ``None`` where the kernel's own causal flag says it."""
        num_seen, num_queries = seen.stop - seen.start, end - begin
        if num_seen == num_queries and (row.window is None or num_queries <= row.window):
            return None
        shape = (num_queries, num_seen)
        mask = torch.full(shape, -torch.inf, dtype=self._dtype, device=self._device)
        diagonal = num_seen - num_queries + 1
        mask = mask.triu_(diagonal)
        if row.window is not None and num_seen > row.window:
            outside = torch.ones(shape, dtype=torch.bool, device=self._device).tril_(diagonal - 1 - row.window)
            mask.masked_fill_(outside, -torch.inf)
        return mask
