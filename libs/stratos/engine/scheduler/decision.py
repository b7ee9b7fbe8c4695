"""The scheduler's answer for one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stratos.common.errors import DeadlinePassed, QueueTimeout, StratosError
from stratos.core.requests.terms import is_over
from stratos.engine.sequence import JobState, Sequence


@dataclass(slots=True)
class StepDecision:
    """Sequences that run in this step with the number of tokens each, and what else happened."""

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    ready_jobs: list[JobState] = field(default_factory=list)
    exhausted: list[Sequence] = field(default_factory=list)
    """Sequences that cannot go on because the whole pool is theirs already."""
    failed: list[tuple[Sequence, StratosError]] = field(default_factory=list)
    """Sequences that end here, with the reason: the deadline passed, or scheduling them raised."""
    held: set[Sequence] = field(default_factory=set)
    """Victims in flight: they do not run in this step, so that the next one can preempt them."""

    def expire(self, running: Iterable[Sequence], waiting: Iterable[Sequence], now: float) -> None:
        """Fail the sequences whose time is over."""
        for sequence in running:
            if is_over(sequence.terms, now):
                self.failed.append((sequence, DeadlinePassed()))
        for sequence in waiting:
            if sequence.terms.left_s(now) == 0 and not sequence.has_run:
                late = QueueTimeout("the deadline passed before the request could run")
                self.failed.append((sequence, late))
            elif is_over(sequence.terms, now):
                self.failed.append((sequence, DeadlinePassed()))
