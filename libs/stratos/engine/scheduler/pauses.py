"""Pauses of the lowest class: its rows leave a step to the prompts of classes above it.

A row that is paused keeps its blocks and its place in the batch; only its token comes later, and it is the same one.

    when      a prompt above the lowest class computes, be it the last token before its first output, or waits while a
              batch slot is free
    who       streams of the lowest class, by the class that they came with
    how long  ``max_passed_steps`` steps in a row, then they run before all prompts in one
    else      where no prompt above gets a token in the step, for want of blocks or a grant, they get what prompts of
              their class leave; a row that finds nothing left has been paused

The next prompt above waits for the step under way.  So while such requests come, and ``_RECENT_S`` after the last one,
prompts of the lowest class are cut so that a step takes ``batch_step_ms``, beside prompts above and without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stratos.core.requests.limits import BATCH_CLASS
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig

if TYPE_CHECKING:
    from stratos.engine.scheduler.budget import StepBudget

_RECENT_S = 10.0


class BatchPauses:
    """Which streams the step that is planned leaves out, and what it cuts off prompts of the lowest class."""

    def __init__(self, config: SchedulerConfig, block_size: int) -> None:
        self._is_on = config.shares_steps and config.switches.batch_pauses
        self._max_passed, self._batch_step_s = config.max_passed_steps, config.batch_step_ms / 1000
        self._block_size = block_size
        self._num_in_row = 0
        self._last_above_s = -math.inf
        self._is_due = self._cuts = False

    def see_above(self, now: float) -> None:
        """Note that streams above the lowest class run, and no prompt does."""
        self._last_above_s = now

    def look(self, running: Iterable[Sequence], waiting: Iterable[Sequence], now: float) -> None:
        """See what could run in the step; of ``waiting`` those that could get a batch slot."""
        if not self._is_on:
            return
        above, has_waiting = [s for s in running if _is_above(s)], any(map(_is_above, waiting))
        if above or has_waiting:
            self.see_above(now)
        has_prompt = has_waiting or any(map(_computes_prompt, above))
        self._is_due = has_prompt and self._num_in_row < self._max_passed
        self._cuts = self._batch_step_s > 0 and now - self._last_above_s <= _RECENT_S

    def split(self, streams: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Streams that run first, and those that are paused if a prompt above gets a token."""
        if not self._is_due:
            return streams, []
        return [s for s in streams if _is_above(s)], [s for s in streams if not _is_above(s)]

    def cut(self, counts: dict[Sequence, int], first: Sequence, budget: StepBudget) -> dict[Sequence, int]:
        """Tokens of prompts, of which those of the lowest class fit the time; ``first`` is served first."""
        if not self._cuts or all(map(_is_above, counts)):
            return counts
        left = budget.room_within(first, self._batch_step_s) - sum(n for s, n in counts.items() if _is_above(s))
        result = dict(counts)
        for sequence in counts:
            if not _is_above(sequence):
                is_overdue = sequence.num_passed_steps >= self._max_passed
                result[sequence] = min(counts[sequence], max(left, self._block_size if is_overdue else 0))
                left -= result[sequence]
        return {sequence: count for sequence, count in result.items() if count > 0}

    def has_won(self, scheduled: Iterable[tuple[Sequence, int]]) -> bool:
        """A prompt above is among those that got tokens, so what was split off is paused in this step."""
        return any(_is_above(sequence) and _computes_prompt(sequence) for sequence, _ in scheduled)

    def note(self, paused: list[Sequence], scheduled: Iterable[tuple[Sequence, int]]) -> None:
        """Take note of the step: some of the streams that were split off do not run in it, or all do."""
        is_paused = bool(paused) and not {sequence for sequence, _ in scheduled}.issuperset(paused)
        self._num_in_row = self._num_in_row + 1 if is_paused else 0


def _computes_prompt(sequence: Sequence) -> bool:
    """A token of its prompt is due; that of a request that was handed off, or cached, may be the last one alone."""
    if sequence.remaining != 1 or sequence.request is None:
        return sequence.remaining > 0
    return sequence.num_output == 0 and not sequence.num_unknown


def _is_above(sequence: Sequence) -> bool:
    return sequence.terms.priority_class < BATCH_CLASS
