"""The contract of what drafts tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Series
from dataclasses import dataclass

from stratos.engine.sequence import DraftState, Sequence


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """Wish for drafts of a sequence."""

    sequence: Sequence
    state: DraftState
    max_tokens: int


class Proposer(ABC):
    """Guesses how sequences go on. A wrong guess costs time and changes nothing else."""

    name = "draft"
    """Name of the method in metrics."""
    max_gap = 16
    """Tokens between two looks at a sequence whose drafts do not run."""
    is_costly = False
    """A drafted token takes ``token_s``, so its length is chosen before it is drafted."""

    def token_s(self, num_rows: int) -> float:
        """Seconds that one more drafted token takes, where so many sequences are drafted for together."""
        return 0.0

    def owed_s(self, sequence: Sequence) -> float:
        """Seconds of work before it can draft for the sequence at all, such as its prompt at a draft model."""
        return 0.0

    def look_ahead(self, asks: Series[DraftAsk]) -> None:  # noqa: B027 - most guess one by one
        """Prepare the guesses of a step, all at once; ``propose`` is called for each afterwards."""

    @abstractmethod
    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        """Tokens that may follow ``sequence.tokens``, at most ``max_tokens``; none where there is no guess.

        ``state.memory`` is the proposer's own.  What it raises ends the drafts of this sequence, not its request.
        """

    def forget(self, sequence: Sequence) -> None:  # noqa: B027 - most keep nothing beside ``state.memory``
        """Take note that a sequence of which it was asked has ended."""

    def forget_tenant(self, tenant: str) -> None:  # noqa: B027 - most keep nothing of tenants
        """Drop everything that a tenant's requests have left."""

    def sleep(self) -> int:
        """Free the memory of a model of its own; returns how many bytes. No sequence is open. As ``Runner.sleep``."""
        return 0

    def wake(self) -> None:  # noqa: B027 - most have no model
        """Load that model again. As ``Runner.wake``."""
