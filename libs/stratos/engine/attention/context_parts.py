"""How the contexts of one decode launch are cut over programs: by their own lengths, not by the number of rows.

With equal parts for all rows a full batch is not split at all, and one context of 32K tokens among 63 short ones is
walked by one program per KV head while the others have long ended.  Here a part has about the same length in every row:

    64 programs a head; 63 rows of 1,000 tokens and one of 32,000: 95,000 / 64 is 1,504 tokens a part in tiles of 32
    short rows round to 1 part, the long one to 21 parts of 1,524

The cut depends on the whole batch, so the last bits of a result do, too; exact mode has parts of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ITEM_FIELDS = 4
"""Row, part, parts of the row, and one for alignment."""


@dataclass(frozen=True, slots=True)
class ContextParts:
    """Plans items: one program of each KV head per item."""

    num_programs: int
    """Programs of each KV head that fill the device."""
    tile: int
    """Tokens that a program reads at a time; parts are whole tiles."""
    max_parts: int
    window: int | None = None
    """The largest one of any layer, where every layer has one: no row reads more."""

    def capacity(self, num_rows: int) -> int:
        """Items that ``num_rows`` contexts come to at most, however long they are."""
        return num_rows + self.num_programs

    @property
    def max_split_items(self) -> int:
        """Items of rows with several parts, at most: each such row has at least 1.5 times a part's tokens."""
        return 4 * self.num_programs // 3 + 1

    def items(self, rows: np.ndarray, contexts: np.ndarray, size: int | None = None) -> np.ndarray:
        """Cut contexts.

        Args:
            rows: int [rows], row of the tables of each context.
            contexts: int [rows], tokens; 0 for padding, which gets one item.
            size: items of the result, at least ``capacity``; those that are not needed have 0 parts.

        Returns:
            int32 [items, ITEM_FIELDS]; the items of a row follow one another, rows with several parts come first.
        """
        lengths = contexts if self.window is None else np.minimum(contexts, self.window)
        part = max(-(-int(lengths.sum()) // self.num_programs), 2 * self.tile)
        part = -(-part // self.tile) * self.tile
        # rounded, not rounded up: a row a little longer than a part is not worth a merge
        counts = np.clip((2 * lengths + part) // (2 * part), 1, self.max_parts).astype(np.int32)
        order = np.argsort(-counts, kind="stable")
        counts = counts[order]
        num_items = int(counts.sum())
        items = np.zeros((num_items if size is None else size, ITEM_FIELDS), dtype=np.int32)
        begins = np.cumsum(counts) - counts
        items[:num_items, 0] = np.repeat(rows[order], counts)
        items[:num_items, 1] = np.arange(num_items) - np.repeat(begins, counts)
        items[:num_items, 2] = np.repeat(counts, counts)
        return items
