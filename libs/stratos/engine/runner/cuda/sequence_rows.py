"""Which row of the device's tables belongs to which sequence: stable while the sequence is served.

A sequence gets a row when a decode step first names it.  The row that was not named for the longest time is given to
the next new sequence, whose state is then written in full; one whose sequence has ended is among those.
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
        self._sent = [0] * capacity

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
            self._sent[row] = 0
        return row

    def changed(self, seq_id: int, begin: int) -> None:
        """Entries of a sequence's block table from ``begin`` on are new."""
        row = self._rows.get(seq_id)
        if row is not None:
            self._sent[row] = min(self._sent[row], begin)

    def send(self, row: int, num_entries: int) -> int:
        """The device gets a table of so many entries: those from the result on have to be sent."""
        first = min(self._sent[row], num_entries)
        self._sent[row] = num_entries
        return first

    def forget_tables(self) -> None:
        """The device's tables may be wrong: all entries have to be sent again."""
        self._sent = [0] * self._capacity
