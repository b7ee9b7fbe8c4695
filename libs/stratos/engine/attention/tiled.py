"""Paged attention in pure torch for exact mode: a token's bits depend on its context alone.

Matrix products of different shapes, and different rows of one product, may add in different orders.  So every product
has one shape, and a token always is in the same row of it: queries are laid into tiles of ``QUERY_TILE`` rows by their
absolute position, keys into tiles of ``KEY_TILE``, the rest is zeros or masked.  A query tile walks the key tiles in
order with an online softmax in float32.  This is slow where few tokens are computed; the C++ kernel does the same
without the waste.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.projections import QkNorm, rotated_heads
from stratos.engine.attention.torch_base import TorchAttention
from stratos.engine.layers.ops import capped
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.revisions import revised

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


class TorchTiledAttention(TorchAttention):
    """The exact kernel that needs no compiler; CPU."""

    name = revised("torch-attention", "torch-tiled")

    # -- once per step -------------------------------------------------------------------------------

    def prepare(self, rows: list[RowSpan]) -> TiledMetadata:
        return TiledMetadata(rows, self._written_slots(rows), [torch.from_numpy(self._key_tiles(row)) for row in rows])

    def _key_tiles(self, row: RowSpan) -> np.ndarray:
        """Slot rows of the context, tile by tile: within a tile all keys of one head lie together."""
        # the last tile is filled up with tokens beyond the context, which are masked
        positions = np.arange(-(-row.context // KEY_TILE) * KEY_TILE)
        tiles = self._slots(self._blocks(row, positions), positions).reshape(-1, KEY_TILE, self._layer_rows)
        return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1)

    # -- once per layer ------------------------------------------------------------------------------

    def forward(
        self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: TiledMetadata
    ) -> Tensor:
        query, key, value = rotated_heads(qkv, rope, qk_norm, self._num_heads, self._head_dim, self._kv_heads)
        is_cut = self._write(layer, metadata.slots, key, value)
        slot_rows = self._layer_slots(layer)
        out = qkv.new_empty(qkv.shape[0], self._num_heads, self._head_dim)
        for row, context in zip(metadata.rows, metadata.contexts, strict=True):
            shape = (-1, self._sides, self._kv_heads, KEY_TILE, self._head_dim)
            tiles = self._read(slot_rows, context).float().view(shape)
            for first, last in _query_tiles(row):
                tokens = slice(row.begin + first - row.start, row.begin + last - row.start)
                out[tokens] = self._attend(layer, query[tokens], first, tiles, self._windows[layer])
        return out.view(out.shape[0], -1).masked_fill_(is_cut, torch.nan)

    def _attend(self, layer: int, query: Tensor, first: int, tiles: Tensor, window: int | None) -> Tensor:
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
        rows = rows * self._scale
        positions = torch.arange(base, base + QUERY_TILE).repeat_interleave(group)
        maximum = torch.full((*rows.shape[:2], 1), -torch.inf)
        total, result = torch.zeros_like(maximum), torch.zeros_like(rows)
        if self._scores.sinks is not None:
            sinks = self._scores.sinks[layer].view(self._kv_heads, 1, group).expand(-1, QUERY_TILE, -1)
            maximum, total = sinks.reshape(self._kv_heads, -1, 1).clone(), torch.ones_like(maximum)
        end = first + query.shape[0]
        begin = 0 if window is None else max(0, base + 1 - window) // KEY_TILE
        for index in range(begin, -(-end // KEY_TILE)):
            keys = torch.arange(index * KEY_TILE, (index + 1) * KEY_TILE)
            is_hidden = keys > positions[:, None]
            if window is not None:
                is_hidden |= keys <= positions[:, None] - window
            scores = torch.bmm(rows, tiles[index, 0].transpose(1, 2))
            if self._scores.cap:
                scores = capped(scores, self._scores.cap)
            scores = scores.masked_fill_(is_hidden, -torch.inf)
            now = torch.maximum(maximum, scores.amax(-1, keepdim=True))
            finite = now.masked_fill(now == -torch.inf, 0.0)
            weights, factor = torch.exp(scores - finite), torch.exp(maximum - finite)
            total = total * factor + weights.sum(-1, keepdim=True)
            result = result * factor + torch.bmm(weights, tiles[index, -1])
            maximum = now
        result = result / total
        return result.view(self._kv_heads, QUERY_TILE, group, -1).transpose(0, 1)[places].flatten(1, 2).to(query.dtype)


def _query_tiles(row: RowSpan) -> Iterator[tuple[int, int]]:
    """Positions of the row, cut where query tiles begin."""
    first = row.start
    while first < row.context:
        last = min(row.context, first - first % QUERY_TILE + QUERY_TILE)
        yield first, last
        first = last
