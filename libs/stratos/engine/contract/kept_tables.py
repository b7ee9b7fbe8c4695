"""Block tables as a runner keeps them from plan to plan: a row of a plan brings the entries that are new.

    step 8   table_begin 0, block_table (7, 4)    the sequence's first row: the table is 7, 4
    step 9   table_begin 2, block_table ()        nothing is new
    step 10  table_begin 2, block_table (9,)      it grew: 7, 4, 9
    step 11  ended has the sequence               nothing is kept of it

A plan that is carried out again gives the same tables, and one that brings a table from its first entry on needs
nothing of what came before: so a plan may be taken back, as long as the next rows of its sequences begin there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stratos.engine.contract.plan import PlanRow, StepPlan

LEAST_ENTRIES = 16


@dataclass(slots=True)
class _KeptTable:
    entries: np.ndarray
    """int32; those from ``length`` on mean nothing."""
    length: int = 0


class KeptTables:
    """One per runner. Each plan is applied once, in the order of launches, before its rows are looked up."""

    def __init__(self) -> None:
        self._kept: dict[int, _KeptTable] = {}

    def __len__(self) -> int:
        """Sequences with a table."""
        return len(self._kept)

    def apply(self, plan: StepPlan) -> None:
        """Forget the sequences that have ended, then take over what the rows bring.

        Raises:
            ValueError: a row builds on entries that no plan has brought; its sequence must not run.
        """
        for seq_id in plan.ended:
            self._kept.pop(seq_id, None)
        for row in plan.rows:
            kept = self._kept.get(row.seq_id)
            if kept is None or row.block_table or kept.length != row.table_begin:
                self._take(row, kept)

    def _take(self, row: PlanRow, kept: _KeptTable | None) -> None:
        begin, end = row.table_begin, row.table_begin + len(row.block_table)
        known = 0 if kept is None else kept.length
        if begin > known:
            raise ValueError(f"sequence {row.seq_id}: {known} entries of its block table are known, not {begin}")
        if kept is None:
            kept = self._kept[row.seq_id] = _KeptTable(np.zeros(max(LEAST_ENTRIES, end), dtype=np.int32))
        elif end > len(kept.entries):
            grown = np.zeros(max(2 * len(kept.entries), end), dtype=np.int32)
            grown[:begin] = kept.entries[:begin]
            kept.entries = grown
        kept.entries[begin:end] = row.block_table
        kept.length = end

    def of(self, seq_id: int) -> np.ndarray:
        """Block ids of a sequence, int32 [entries]: a view that the sequence's next row may change.

        Raises:
            KeyError: no plan had a row of it, or it has ended.
        """
        kept = self._kept[seq_id]
        return kept.entries[: kept.length]
