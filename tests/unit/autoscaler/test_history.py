"""The latest decisions: what holds now is told, whatever else happened since it began."""

from __future__ import annotations

from stratos.core.placement import WorkerRole
from stratos.planning.demand import Reason
from stratos.planning.planner import Direction, PlanningDecision
from stratos.planning.settings import PoolKey, ScalingMode
from stratos_autoscaler.history import MAX_ENTRIES, History

CALM, WILD = PoolKey(role=WorkerRole.PREFILL), PoolKey(role=WorkerRole.DECODE)


def decision(desired: int) -> PlanningDecision:
    return PlanningDecision(direction=Direction.HOLD, reason=Reason.STEADY, desired=desired)


def test_a_calm_pool_is_told_however_often_another_one_changes_its_mind() -> None:
    history = History()
    for second in range(MAX_ENTRIES + 10):
        history.add_decision(CALM, ScalingMode.PLANNER, decision(1), None, float(second))
        history.add_decision(WILD, ScalingMode.PLANNER, decision(second % 2), None, float(second))
    newest = history.entries(2)
    assert [(entry.key, entry.num_times) for entry in newest] == [(CALM, MAX_ENTRIES + 10), (WILD, 1)]
    assert len(history.entries()) == MAX_ENTRIES + 1
    history.keep_open({WILD})
    assert {entry.key for entry in history.entries()} == {WILD}, "a pool that is gone is told no longer than others"
