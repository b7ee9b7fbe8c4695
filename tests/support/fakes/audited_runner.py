"""A fake runner that compares the block tables it keeps with the engine's, whenever a plan is launched."""

from __future__ import annotations

from typing import Any, Literal

from stratos.engine.contract.plan import StepPlan
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.sequence import RELEASED

FAILED = "the test makes this launch fail"


class AuditedRunner(FakeRunner):
    """Set ``engine`` before the first step."""

    engine: EngineCore

    def __init__(self, config: FakeConfig) -> None:
        super().__init__(config)
        self.fails_next: Literal["", "before", "after"] = ""
        """The next launch fails before its tables are taken over, or after that."""
        self.differences: list[str] = []
        """Kept rather than raised: an engine recovers from what a launch raises."""
        self.num_carried = self.num_planned = 0
        """Entries that plans carried, and entries of the tables of their rows."""

    def launch(self, plan: StepPlan) -> Any:
        fails, self.fails_next = self.fails_next, ""
        if fails == "before":
            raise RuntimeError(FAILED)
        handle = super().launch(plan)
        self._audit(plan)
        if fails == "after":
            raise RuntimeError(FAILED)
        return handle

    def _audit(self, plan: StepPlan) -> None:
        held = {sequence.seq_id: sequence.block_table for sequence in self.engine.inspect().sequences}
        for row in plan.rows:
            if row.seq_id < 0:
                continue
            table = self.block_tables.of(row.seq_id).tolist()
            own = held[row.seq_id][: -(-(row.start + len(row.token_ids)) // self.config.block_size)]
            # a held block stands for a released one
            if [block for block in own if block == RELEASED] and not set(table) <= set(own):
                self.differences.append(f"step {plan.step}: {table} has blocks that {own} does not hold")
            if table != [kept if block == RELEASED else block for kept, block in zip(table, own, strict=False)]:
                self.differences.append(f"step {plan.step}: {table} is not {own}")
            self.num_carried += len(row.block_table)
            self.num_planned += len(table)
        # -1 is the row of no request with which the engine finds out whether the runner computes at all
        if len(self.block_tables) > sum(1 for table in held.values() if table) + 1:
            self.differences.append(f"step {plan.step}: tables of {len(self.block_tables)} sequences")


def audited_engine(fake: FakeConfig, config: Any) -> tuple[EngineCore, AuditedRunner]:
    """An engine over such a runner."""
    runner = AuditedRunner(fake)
    runner.engine = EngineCore(runner, config)
    return runner.engine, runner
