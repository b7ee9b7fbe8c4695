"""The contract of what drafts tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Series

from stratos.engine.sequence import DraftState, Sequence


class Proposer(ABC):
    """Guesses how sequences go on. A wrong guess costs time and changes nothing else."""

    name = "draft"
    """Name of the method in metrics."""

    @abstractmethod
    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        """Tokens that may follow ``sequence.tokens``, at most ``max_tokens``; none where there is no guess.

        ``state.memory`` is the proposer's own.  What it raises ends the drafts of this sequence, not its request.
        """
