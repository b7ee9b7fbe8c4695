"""Paged attention in pure torch for exact mode: a token's bits depend on its context alone.

Matrix products of different shapes, and different rows of one product, may add in different orders.  So every product
has one shape, and a token always is in the same row of it: queries are laid into tiles of ``QUERY_TILE`` rows by their
absolute position, keys into tiles of ``KEY_TILE``, the rest is zeros or masked.  A query tile walks the key tiles in
order with an online softmax in float32.  This is slow where few tokens are computed; the C++ kernel does the same
without the waste.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.projections import QkNorm, rotated_heads
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages

QUERY_TILE = 16
KEY_TILE = 128


@dataclass(frozen=True, slots=True)
class TiledMetadata:
    """Index tensors of one step."""

    rows: list[RowSpan]
    slots: Tensor
    """Where K and V of each token go, rows of head_dim of layer 0: int64 [tokens * 2 * kv_heads]."""
    contexts: list[Tensor]
    """Per row, K and V of its key tiles as rows of layer 0: int64 [tiles * 2 * kv_heads * KEY_TILE]."""


class TorchTiledAttention(AttentionBackend):
    """The exact kernel that needs no compiler; CPU."""

    name = "torch-tiled"

    def __init__(self, pages: KvPages, num_heads: int, windows: Sequence[int | None]) -> None:
        geometry = pages.geometry
        assert len(windows) == geometry.num_layers
        self._windows = tuple(windows)
        self._num_heads, self._kv_heads = num_heads, geometry.num_kv_heads
        self._head_dim, self._block_size = geometry.head_dim, geometry.block_size
        self._layer_rows = 2 * self._kv_heads * self._block_size
        self._block_rows = geometry.num_layers * self._layer_rows
        self._slot_rows = pages.tensor.view(-1, self._head_dim)

    # -- once per step -------------------------------------------------------------------------------

    def prepare(self, rows: list[RowSpan]) -> TiledMetadata:
        """See ``AttentionBackend.prepare``."""
        written = [self._slots(row, np.arange(row.start, row.context)) for row in rows]
        contexts = [self._slots(row, np.arange(-(-row.context // KEY_TILE) * KEY_TILE)) for row in rows]
        return TiledMetadata(
            rows,
            torch.from_numpy(np.concatenate(written).reshape(-1)),
            [torch.from_numpy(self._by_tile(slots)) for slots in contexts],
        )

    def _slots(self, row: RowSpan, positions: np.ndarray) -> np.ndarray:
        """Rows of K and V of each position, [positions, 2 * kv_heads]; beyond the table any valid one."""
        size = self._block_size
        table = np.asarray(row.block_table, dtype=np.int64)
        blocks = table[np.minimum(positions // size, len(table) - 1)]
        first: np.ndarray = blocks * self._block_rows + positions % size
        slots: np.ndarray = first[:, None] + np.arange(2 * self._kv_heads) * size
        return slots

    def _by_tile(self, slots: np.ndarray) -> np.ndarray:
        tiles = slots.reshape(-1, KEY_TILE, 2 * self._kv_heads)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1)

    # -- once per layer ------------------------------------------------------------------------------

    def forward(
        self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: TiledMetadata
    ) -> Tensor:
        """See ``AttentionBackend.forward``."""
        query, key, value = rotated_heads(qkv, rope, qk_norm, self._num_heads, self._head_dim)
        slot_rows = self._slot_rows[layer * self._layer_rows :]
        written = torch.cat((key, value), 1).view(-1, self._head_dim).nan_to_num_(0.0, 0.0, 0.0)
        slot_rows.index_copy_(0, metadata.slots, written)
        out = qkv.new_empty(qkv.shape[0], self._num_heads, self._head_dim)
        for row, context in zip(metadata.rows, metadata.contexts, strict=True):
            shape = (-1, 2, self._kv_heads, KEY_TILE, self._head_dim)
            tiles = slot_rows.index_select(0, context).float().view(shape)
            for first, last in _query_tiles(row):
                tokens = slice(row.begin + first - row.start, row.begin + last - row.start)
                out[tokens] = self._attend(query[tokens], first, tiles, self._windows[layer])
        return out.view(out.shape[0], -1)

    def _attend(self, query: Tensor, first: int, tiles: Tensor, window: int | None) -> Tensor:
        """Queries at positions from ``first`` on, all of one query tile: [tokens, heads, head_dim] as ``query``."""
        base, places = first - first % QUERY_TILE, slice(first % QUERY_TILE, first % QUERY_TILE + query.shape[0])
        group = self._num_heads // self._kv_heads
        padded = query.new_zeros(QUERY_TILE, self._num_heads, self._head_dim, dtype=torch.float32)
        padded[places] = query.float()
        # [kv_heads, QUERY_TILE * group, head_dim]
        rows = (
            padded.view(QUERY_TILE, self._kv_heads, group, -1)
            .transpose(0, 1)
            .reshape(self._kv_heads, -1, self._head_dim)
        )
        rows = rows * self._head_dim**-0.5
        positions = torch.arange(base, base + QUERY_TILE).repeat_interleave(group)
        most = torch.full((*rows.shape[:2], 1), -torch.inf)
        total, result = torch.zeros_like(most), torch.zeros_like(rows)
        end = first + query.shape[0]
        begin = 0 if window is None else max(0, base + 1 - window) // KEY_TILE
        for index in range(begin, -(-end // KEY_TILE)):
            keys = torch.arange(index * KEY_TILE, (index + 1) * KEY_TILE)
            is_hidden = keys > positions[:, None]
            if window is not None:
                is_hidden |= keys <= positions[:, None] - window
            scores = torch.bmm(rows, tiles[index, 0].transpose(1, 2)).masked_fill_(is_hidden, -torch.inf)
            now = torch.maximum(most, scores.amax(-1, keepdim=True))
            finite = now.masked_fill(now == -torch.inf, 0.0)
            weights, factor = torch.exp(scores - finite), torch.exp(most - finite)
            total = total * factor + weights.sum(-1, keepdim=True)
            result = result * factor + torch.bmm(weights, tiles[index, 1])
            most = now
        result = result / total
        return result.view(self._kv_heads, QUERY_TILE, group, -1).transpose(0, 1)[places].flatten(1, 2).to(query.dtype)


def _query_tiles(row: RowSpan) -> Iterator[tuple[int, int]]:
    """Positions of the row, cut where query tiles begin."""
    first = row.start
    while first < row.context:
        last = min(row.context, first - first % QUERY_TILE + QUERY_TILE)
        yield first, last
        first = last
