"""Steps whose batch is that of the step before: the same streams, a token each, while nothing waits.

Nearly all steps of a worker are of this kind.  What the scheduler would find by looking at everything is known then:
the same rows in the same order, since the order of what runs stands still.  What can change by itself is looked at in
each step: whose time is over, who has a token to compute, and who needs a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Series

from stratos.core.requests.limits import BATCH_CLASS
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.scheduler.decision import StepDecision
from stratos.engine.sequence import Sequence


class SteadyBatch:
    """The rows of the last step, if the next one may have the same.

    Args:
        kv: gives the blocks that streams grow into.
        is_on: ``False`` never finds a step steady.
    """

    def __init__(self, kv: KvCache, *, is_on: bool) -> None:
        self._kv, self._is_on = kv, is_on
        self._running: list[Sequence] = []
        self._rows: list[tuple[Sequence, int]] = []
        """In the order of service; none: the next step is not steady."""
        self._end_s = math.inf
        self.has_above = False
        """Some stream is above the lowest class."""

    def note(self, running: list[Sequence], waiting: Series[Sequence], decision: StepDecision) -> None:
        """Remember a decision that was made by looking at everything; its rows are not entered yet."""
        self._rows, rows = [], decision.scheduled
        if not self._is_on or waiting or len(rows) != len(running):
            return
        if decision.failed or decision.exhausted or decision.held or decision.ready_jobs:
            return
        if not all(count == 1 and _is_stream(sequence) for sequence, count in rows):
            return
        self._rows, self._running = list(rows), list(running)
        self._end_s = min((s.terms.end_s for s in running if s.terms.end_s is not None), default=math.inf)
        self.has_above = any(s.terms.priority_class < BATCH_CLASS for s in running)

    def follow(self, running: list[Sequence], now: float) -> list[tuple[Sequence, int]] | None:
        """Rows of the next step, where nothing waits, with the blocks they need; ``None``: look at everything.

        What it took for some rows before it found that it must give up, these rows need in any case.
        """
        rows, self._rows = self._rows, []
        if not rows or now >= self._end_s or running != self._running or self._kv.tier.num_loading:
            return None
        size, grow = self._kv.blocks.block_size, self._kv.tables.grow
        for sequence, _ in rows:
            end, num_unknown = sequence.num_computed + sequence.num_in_flight + 1, sequence.num_unknown
            # as ``Sequence.remaining`` is 1
            if len(sequence.tokens) + num_unknown != end or (num_unknown and end >= sequence.max_len):
                return None
            if end > len(sequence.block_table) * size and not grow(sequence, end):
                return None
        self._rows = rows
        return list(rows)


def _is_stream(sequence: Sequence) -> bool:
    """It has had a token, or has one in flight, and no step computes its next one yet."""
    is_past_prompt = sequence.request is not None and (sequence.num_unknown > 0 or sequence.num_output > 0)
    return is_past_prompt and sequence.remaining == 1
