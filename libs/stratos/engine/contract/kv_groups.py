"""How the KV of a block lies in pages where some layers of a model see the whole context and others a window.

A *block* is ``block_size`` tokens of all layers.  Its KV lies in pages of equal size, and each page holds some layers,
its *column*.  Pages of layers that see the whole context live as long as the block; those of layers with a window are
its *window part*, which ends as soon as every holder of the block has its window behind it.

Six layers, every third of which sees everything: the columns are (2, 5), (0, 1) and (3, 4), and the first one is full.
A block has pages 17, 4 and 9; once it is out of every window, 4 and 9 go to another block, and 17 stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

MAX_PADDING = 0.05
"""Share of a page's layers, over all pages of a block, that may stand for no layer of the model."""


@dataclass(frozen=True, slots=True)
class KvGroups:
    """Pages of a block."""

    columns: tuple[tuple[int, ...], ...]
    """Layers of each page, in order; pages of layers that see the whole context come first."""
    num_full: int
    """Pages of these."""
    window: int
    """Positions that a token sees at most, up to its own, in the layers of the other pages."""

    @property
    def num_pages(self) -> int:
        return len(self.columns)

    @property
    def num_window(self) -> int:
        """Pages of the window part."""
        return self.num_pages - self.num_full

    @property
    def num_layers(self) -> int:
        """Layers that a page has room for."""
        return max(len(column) for column in self.columns)

    def places(self) -> dict[int, tuple[int, int]]:
        """Column and place in it, by layer."""
        return {layer: (c, p) for c, column in enumerate(self.columns) for p, layer in enumerate(column)}


def group_layers(windows: tuple[int | None, ...]) -> KvGroups | None:
    """The fewest pages that leave little of their room empty; ``None`` for layers that are all of one kind."""
    full = tuple(layer for layer, window in enumerate(windows) if window is None)
    bounded = tuple(layer for layer, window in enumerate(windows) if window is not None)
    if not full or not bounded:
        return None
    for size in range(min(len(full), len(bounded)), 0, -1):
        num_full, num_bounded = -(-len(full) // size), -(-len(bounded) // size)
        if (num_full + num_bounded) * size <= (1 + MAX_PADDING) * len(windows):
            break
    columns = (*_columns(full, num_full), *_columns(bounded, num_bounded))
    return KvGroups(columns, num_full, max(window for window in windows if window is not None))


def _columns(layers: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """``layers`` in ``count`` runs of nearly equal length."""
    ends = [len(layers) * i // count for i in range(count + 1)]
    return [layers[begin:end] for begin, end in pairwise(ends)]
