"""Base of the backends in torch: the pool as flat rows, where a token lies in it, writing K and V of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.scores import PLAIN_SCORES, ScoreOptions
from stratos.engine.memory.kv_codes import with_codes
from stratos.engine.memory.kv_pages import KvPages


class TorchAttention(AttentionBackend):
    """Sees a pool [blocks, layers, sides, kv_heads, block_size, head_dim] as two tables.

    A *page row* is one block of one head of K or V, a *slot row* one token of that: numbers, or bytes of codes.
    Indices are made for layer 0, once per step; other layers shift the view.  With 3 layers, 2 KV heads and blocks of
    16, token 21 of a sequence whose table is (7, 4) lies in block 4 at place 5.  Its page rows in layer 0 are
    4 * 3 * 4 + (0, 1, 2, 3) = 48 to 51: K of both heads, then V.  Its slot rows are 48 * 16 + 5, 49 * 16 + 5, ...;
    layer 1 begins 4 page rows further.

    Args:
        pages: the KV pool.
        num_heads: query heads.
        windows: sliding window of each layer.
        dtype: what is computed; given where pages hold codes.
        scores: what the model does with scores.
    """

    def __init__(
        self,
        pages: KvPages,
        num_heads: int,
        windows: Sequence[int | None],
        dtype: torch.dtype | None = None,
        scores: ScoreOptions = PLAIN_SCORES,
    ) -> None:
        geometry = pages.geometry
        assert len(windows) == geometry.num_layers
        self._scores, self._scale = scores, scores.scale_for(geometry.head_dim)
        self._windows = tuple(windows)
        self._num_heads, self._kv_heads = num_heads, geometry.num_kv_heads
        self._head_dim, self._block_size = geometry.head_dim, geometry.block_size
        self._sides = geometry.num_sides
        self._layer_rows = self._sides * self._kv_heads
        self._block_rows = geometry.num_layers * self._layer_rows
        self._device, self._dtype, self._codes = pages.tensor.device, dtype or pages.tensor.dtype, pages.codes
        self.name = with_codes(self.name, pages.codes)
        row = pages.tensor.shape[-1]
        self._page_rows = pages.tensor.view(-1, self._block_size * row)
        self._slot_rows = pages.tensor.view(-1, row)

    def _blocks(self, row: RowSpan, positions: np.ndarray) -> np.ndarray:
        """Block of each position; beyond the table the last one, which the caller hides."""
        table = np.asarray(row.block_table, dtype=np.int64)
        blocks: np.ndarray = table[np.minimum(positions // self._block_size, len(table) - 1)]
        return blocks

    def _slots(self, blocks: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Slot rows of K and V of tokens at ``positions`` that lie in ``blocks``: [tokens, 2 * kv_heads]."""
        page_rows = blocks[:, None] * self._block_rows + np.arange(self._layer_rows)
        slots: np.ndarray = page_rows * self._block_size + (positions % self._block_size)[:, None]
        return slots

    def _written_slots(self, rows: list[RowSpan]) -> Tensor:
        """Slot rows of this step's tokens, int64 [tokens * 2 * kv_heads]."""
        positions = [np.arange(row.start, row.context) for row in rows]
        blocks = [self._blocks(row, places) for row, places in zip(rows, positions, strict=True)]
        slots = self._slots(np.concatenate(blocks), np.concatenate(positions))
        return torch.from_numpy(slots.reshape(-1)).to(self._device)

    def _layer_slots(self, layer: int) -> Tensor:
        """Slot rows from those of ``layer`` on."""
        return self._slot_rows[layer * self._layer_rows * self._block_size :]

    def _write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store K and V [tokens, kv_heads, head_dim]; V has no heads where pages have one side.

        What is not finite is stored as 0: masked reads of a stale token must not poison a block's next owner.

        Returns:
            Bool [tokens, 1]: something of the token was not finite, so ``NaN`` is what its result must be.
        """
        kv = torch.cat((key, value), 1)
        is_cut = (kv * 0).sum((1, 2)).isnan()[:, None]
        written = kv.view(-1, self._head_dim).nan_to_num_(0.0, 0.0, 0.0)
        stored = written if self._codes is None else self._codes.rows(written)
        self._layer_slots(layer).index_copy_(0, slots, stored)
        return is_cut

    def _read(self, rows: Tensor, index: Tensor) -> Tensor:
        """Numbers of some page rows or slot rows, [n, their tokens * head_dim]."""
        found = rows.index_select(0, index)
        if self._codes is None:
            return found
        floats = self._codes.floats(found.view(-1, self._slot_rows.shape[1]))
        return floats.to(self._dtype).view(len(index), -1)
