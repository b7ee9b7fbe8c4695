"""Attention over a pool of KV groups: one backend for each column of layers, over the same pages with its own table.

A backend computes a layer as it would over a pool of its column alone, so a token's bits are those of any other pool.
What a sequence has passed in a column with windows may be another's by now: its entries there are replaced by one that
the sequence holds, so nothing of others is read, not even to be masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.projections import QkNorm
from stratos.engine.attention.scores import ScoreOptions
from stratos.engine.contract.kv_groups import KvGroups
from stratos.engine.layers.rotary import RopeRows

MakeBackend = Callable[[list[int | None], ScoreOptions], AttentionBackend]
"""Makes the backend of a column: windows and scores of its layers."""


class GroupedAttention(AttentionBackend):
    """Backends by column.

    Args:
        groups: pages of a block.
        block_size: tokens of a block.
        windows: sliding window of each layer.
        scores: what the model does with scores.
        make: makes the backend of a column.
    """

    def __init__(
        self,
        groups: KvGroups,
        block_size: int,
        windows: Sequence[int | None],
        scores: ScoreOptions,
        make: MakeBackend,
    ) -> None:
        self.groups, self._block_size = groups, block_size
        self.places = groups.places()
        sinks = None if scores.sinks is None else _by_column(scores.sinks, groups)
        self.scores = [
            replace(scores, sinks=None if sinks is None else sinks[index]) for index in range(groups.num_pages)
        ]
        self.backends = [
            make([windows[layer] for layer in column] + [None] * (groups.num_layers - len(column)), own)
            for column, own in zip(groups.columns, self.scores, strict=True)
        ]
        first = self.backends[0]
        self.name, self.libraries = first.name, first.libraries
        self.is_invariant_by_design = first.is_invariant_by_design

    def prepare(self, rows: list[RowSpan]) -> list[Any]:
        return [backend.prepare(self.column(rows, index)) for index, backend in enumerate(self.backends)]

    def forward(self, layer: int, qkv: Tensor, rope: RopeRows, qk_norm: QkNorm | None, metadata: list[Any]) -> Tensor:
        column, place = self.places[layer]
        return self.backends[column].forward(place, qkv, rope, qk_norm, metadata[column])

    def cut(self, metadata: list[Any]) -> Tensor | None:
        cuts = [cut for own in zip(self.backends, metadata, strict=True) if (cut := own[0].cut(own[1])) is not None]
        return torch.stack(cuts).any(0) if cuts else None

    def column(self, rows: list[RowSpan], index: int) -> list[RowSpan]:
        """The rows as the backend of a column sees them."""
        return [replace(row, block_table=self._table(row, index)) for row in rows]

    def _table(self, row: RowSpan, index: int) -> np.ndarray:
        table = np.asarray(row.block_table)[index :: self.groups.num_pages]
        first = max(0, row.start + 1 - self.groups.window) // self._block_size
        if index < self.groups.num_full or not first:
            return table
        table = table.copy()
        table[:first] = table[first]
        return table


def _by_column(sinks: Tensor, groups: KvGroups) -> Tensor:
    """Sinks of heads [columns, layers of one, heads]."""
    chosen = sinks.new_zeros(groups.num_pages, groups.num_layers, sinks.shape[1])
    for index, column in enumerate(groups.columns):
        chosen[index, : len(column)] = sinks[torch.tensor(column)]
    return chosen
