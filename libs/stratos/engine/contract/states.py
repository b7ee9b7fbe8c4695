"""Recurrent state of sequences, of models some of whose layers keep that in place of KV.

A *slot* holds the state of one sequence in all these layers: what it was after some number of tokens.  A row reads the
slot of the tokens before it and writes another one, so running it again gives the same.  A *snapshot* is a slot that
belongs to the hash of a full block: the state at the end of that block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NO_SLOT = -1
"""Read: there are no tokens before, and the state is zeros. Written: the state after the row is of no use."""


@dataclass(slots=True, kw_only=True)
class StateRow:
    """Slots of one row of a plan."""

    read: int
    write: int
    snapshots: tuple[tuple[int, int], ...] = ()
    """(tokens of the row, slot): the state after these tokens is copied there."""


HARMLESS = StateRow(read=NO_SLOT, write=NO_SLOT)
"""Of a row that no sequence goes on from."""


@dataclass(slots=True, eq=False)
class HeldStates:
    """Slots of one sequence, or of a hand-off that is not committed."""

    current: int
    """Has the state after the tokens that are computed; held once more where it is not one of ``own``."""
    own: tuple[int, ...]
    """Written by turns; none where nothing is computed."""
    prompt_end: int = 0
    """Tokens after which a snapshot is taken in any case."""
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    """(tokens of the sequence, slot) of those that the launched row takes."""

    @property
    def next(self) -> int:
        """Slot that the next row writes."""
        return self.own[1] if self.current == self.own[0] else self.own[0]

    @property
    def slots(self) -> list[int]:
        """All that it holds, as often as it does."""
        borrowed = [] if self.current in (*self.own, NO_SLOT) else [self.current]
        return [*self.own, *borrowed, *(slot for _, slot in self.snapshots)]
