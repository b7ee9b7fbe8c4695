"""Blocks that the batch will take beyond what it holds, added up once for a step, however many sequences it admits.

Each admission asks for them, and each adds a sequence to the batch: with a sum over the batch for each, the time of a
step would grow with the square of a burst, and a worker of some thousand streams would count as hung.
"""

from __future__ import annotations

from stratos.engine.kv_cache.block_tables import BlockTables
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig


class BatchNeeds:
    """Sums over the running sequences, while nothing but admissions changes them.

    Args:
        tables: of the engine.
        running: the batch; the list itself, to which each admission is appended.
        config: of the scheduler.
        num_budgeted_blocks: of budgets that their sequences do not hold yet, uncommitted hand-offs included.
    """

    def __init__(
        self, tables: BlockTables, running: list[Sequence], config: SchedulerConfig, num_budgeted_blocks: int
    ) -> None:
        self._tables, self._running, self._config = tables, running, config
        self.num_budgeted_blocks = num_budgeted_blocks
        self._growth: dict[int, int] = {}
        """By number of steps: blocks that the batch takes in them."""

    def add(self, sequence: Sequence) -> None:
        """``sequence`` has joined the batch."""
        if self._config.admission_counts_budgets:
            self.num_budgeted_blocks += sequence.num_unused_budget_blocks
        for num_steps in self._growth:
            self._growth[num_steps] += self._missing(sequence, num_steps)

    def growth_until_token(self, sequence: Sequence) -> int:
        """Blocks that the batch takes until ``sequence``, admitted now, has computed all of its tokens."""
        chunk = max(self._tables.blocks.block_size, self._config.token_budget - len(self._running))
        num_steps = 1 + -(-len(sequence.tokens) // chunk)
        if num_steps not in self._growth:
            self._growth[num_steps] = sum(self._missing(s, num_steps) for s in self._running)
        return self._growth[num_steps]

    def _missing(self, sequence: Sequence, num_steps: int) -> int:
        if sequence.job is not None:
            return 0  # it holds all its blocks from the start
        end = min(len(sequence.tokens) + sequence.num_unknown + num_steps, sequence.max_len)
        return self._tables.num_missing(sequence, end)
