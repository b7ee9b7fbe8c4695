"""Gates of roll-outs: what too little evidence, chance, and plain faults lead to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stratos.core.ledger.steps import BEYOND, bucket_of
from stratos.store.counters.arm_counts import ArmCounts
from stratos.store.models.rollout_record import Baseline, RolloutGates, RolloutPhase, RolloutRecord
from stratos_gateway.rollouts.judge import GateOutcome, following, verdicts

OLD, NEW = "a" * 64, "b" * 64
HOLD_US = 300_000_000
ROLLOUT = RolloutRecord(
    model="base",
    old=OLD,
    new=NEW,
    steps=(10, 100),
    hold_s=300,
    gates=RolloutGates(errors=0.5, ttft_p99=20, itl_p99=20),
    is_applied=True,
    epoch=1,
)


def arm(num: int = 1000, *, errors: int = 0, slow: int = 0, slow_us: int = 500_000) -> ArmCounts:
    """Requests of 100 ms to the first token and 10 ms between two, of which some are slow."""
    ttfts = Counter({bucket_of(100_000): num - slow, bucket_of(slow_us): slow})
    return ArmCounts(num, errors, ttfts=ttfts, itls=Counter({bucket_of(10_000): 5 * num}))


def judged(
    old: ArmCounts, new: ArmCounts, now_us: int = HOLD_US, *, has_workers: bool = True, **changes: object
) -> RolloutRecord | None:
    return following(replace(ROLLOUT, **changes), {OLD: old, NEW: new}, now_us, has_workers=has_workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "now_us", "has_workers"),
    [
        (arm(), arm(), HOLD_US - 1, True),
        (arm(199), arm(), HOLD_US, True),
        (arm(), arm(199), HOLD_US, True),
        (arm(), arm(), HOLD_US, False),
        (ArmCounts(), ArmCounts(), 100 * HOLD_US, True),
        (arm(), replace(arm(), itls=Counter()), HOLD_US, True),  # answers of one token: its ITLs are not known
        (replace(arm(), ttfts=Counter({BEYOND: 1000})), arm(), HOLD_US, True),  # nothing to compare with
        (arm(), arm(199, errors=199), 100 * HOLD_US, True),
        (arm(), arm(errors=6), HOLD_US - 1, True),  # broken, but no more than chance may do
    ],
)
def test_a_step_goes_on_without_evidence_before_its_hold_is_over_and_without_workers(
    old: ArmCounts, new: ArmCounts, now_us: int, has_workers: bool
) -> None:
    assert judged(old, new, now_us, has_workers=has_workers) is None


def test_the_next_step_waits_for_its_weights_and_the_last_one_goes_by_the_old_revision_of_the_step_before() -> None:
    after = judged(arm(slow=11, slow_us=300_000), arm())
    assert after is not None
    assert (after.phase, after.step, after.percent, after.is_applied) == (RolloutPhase.RUNNING, 1, 100, False)
    assert after.baseline is not None
    assert after.baseline.ttft_p99_us == pytest.approx(300_000, rel=0.02)
    assert following(after, {OLD: arm(), NEW: arm()}, 9 * HOLD_US, has_workers=True) is None  # weights are not written
    last = {"step": 1, "baseline": after.baseline}
    done = judged(ArmCounts(), arm(), **last)
    assert done is not None
    assert (done.phase, done.percent, done.is_applied) == (RolloutPhase.DONE, 100, False)
    back = judged(ArmCounts(), arm(slow=11), **last)
    assert back is not None
    assert (back.phase, back.percent) == (RolloutPhase.ROLLED_BACK, 0)
    assert judged(ArmCounts(), arm(), step=1, baseline=Baseline()) is None


@pytest.mark.parametrize(
    ("new", "now_us", "gate"),
    [
        (arm(errors=6), HOLD_US, "errors: 6 of 1000"),
        (arm(errors=13), 1, "errors: 13 of 1000"),  # beyond chance: the hold is not waited for
        (arm(slow=11), HOLD_US, "ttft_p99: "),
        (arm(slow=60), 1, "ttft_p99: "),
        (replace(arm(), ttfts=Counter({BEYOND: 1000})), 1, "ttft_p99: beyond all steps"),
        (replace(arm(), itls=Counter({bucket_of(13_000): 5000})), 1, "itl_p99: "),
    ],
)
def test_a_broken_gate_sends_all_requests_back(new: ArmCounts, now_us: int, gate: str) -> None:
    for has_workers in (True, False):
        back = judged(arm(), new, now_us, has_workers=has_workers)
        assert back is not None
        assert (back.phase, back.is_applied) == (RolloutPhase.ROLLED_BACK, False)
        assert back.reason.startswith(gate), back.reason
        assert [target.digest for target in back.targets] == [OLD]


def test_a_pause_is_not_judged_and_no_error_at_all_can_be_asked_for() -> None:
    assert judged(arm(), arm(errors=1000), phase=RolloutPhase.PAUSED) is None
    strict = replace(ROLLOUT, gates=RolloutGates(errors=0))
    found = verdicts(strict, {OLD: arm(), NEW: arm(errors=1)})
    assert [verdict.outcome for verdict in found] == [GateOutcome.HOLDS, GateOutcome.CLEARLY_BROKEN]
