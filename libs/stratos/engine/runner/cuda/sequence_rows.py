"""Which row of the device's tables belongs to which sequence: stable while the sequence is served.

A sequence gets a row when a plan first names it.  Nothing tells when it ends: the row that was not named for the
longest time is given to the next new sequence, whose state is then written in full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class SequenceRows:
    """Rows ``0 .. capacity - 1``.

    Args:
        capacity: at least twice the sequences of a plan, so that the rows of a plan survive the next one.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rows: OrderedDict[int, int] = OrderedDict()
        self._tables: list[tuple[int, ...]] = [()] * capacity

    def place(self, seq_ids: Iterable[int]) -> list[int]:
        """Rows of the sequences of one plan.

        Raises:
            ValueError: the plan has more sequences than half of the capacity.
        """
        ids = list(seq_ids)
        if 2 * len(ids) > self._capacity:
            raise ValueError(f"a step of {len(ids)} sequences; the device's tables hold {self._capacity // 2}")
        for seq_id in ids:
            if seq_id in self._rows:
                self._rows.move_to_end(seq_id)
        return [self._row(seq_id) for seq_id in ids]

    def _row(self, seq_id: int) -> int:
        row = self._rows.get(seq_id)
        if row is None:
            row = len(self._rows) if len(self._rows) < self._capacity else self._rows.popitem(last=False)[1]
            self._rows[seq_id] = row
            self._tables[row] = ()
        return row

    def table_changes(self, row: int, block_table: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Where the device's copy of a block table ends to be right, and the entries from there on."""
        known = self._tables[row]
        count = len(known)
        if block_table[:count] != known:
            count = 0
        self._tables[row] = block_table
        return count, block_table[count:]

    def forget_tables(self) -> None:
        """The device's tables may be wrong: changes begin with the first entry again."""
        self._tables = [()] * self._capacity
