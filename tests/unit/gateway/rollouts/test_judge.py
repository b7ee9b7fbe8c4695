"""Gates of roll-outs: what too little evidence, chance, and plain faults lead to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stratos.core.ledger.steps import BEYOND, bucket_of
from stratos.store.counters.arm_counts import ArmCounts, p99_bucket_of
from stratos.store.models.rollout_record import Baseline, Drift, RolloutGates, RolloutPhase, RolloutRecord
from stratos_gateway.rollouts.judge import GateOutcome, following, too_far, verdicts

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
    return ArmCounts(num, errors, ttfts=ttfts, itls=Counter({bucket_of(10_000): num}))


def left(num: int, *, after_us: int = 30_000_000, answered: int = 0) -> ArmCounts:
    """A revision that hangs: its clients leave, but those of some requests."""
    return replace(arm(answered), left=Counter({bucket_of(after_us): num}))


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
        (arm(), arm(19, errors=19), 100 * HOLD_US, True),  # one lost worker may fail as many
        (arm(), arm(errors=6), 100 * HOLD_US, True),  # more than is allowed, but no more than chance may do
        (arm(), arm(slow=11), 100 * HOLD_US, True),
        (arm(errors=150), arm(errors=150), 100 * HOLD_US, True),  # the platform's trouble
        (arm(), left(50, answered=1000, after_us=110_000), 100 * HOLD_US, True),  # of them it may hang for good
        (arm(), replace(arm(), num_missed=50), 100 * HOLD_US, True),  # it has no room for its load
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
    last: dict[str, Any] = {"step": 1, "baseline": after.baseline}
    done = judged(ArmCounts(), arm(), **last)
    assert done is not None
    assert (done.phase, done.percent, done.is_applied) == (RolloutPhase.DONE, 100, False)
    assert judged(ArmCounts(), left(50, answered=1000, after_us=310_000), **last) is None
    back = judged(ArmCounts(), arm(slow=60), **last)
    assert back is not None
    assert (back.phase, back.percent) == (RolloutPhase.ROLLED_BACK, 0)
    assert judged(ArmCounts(), arm(), step=1, baseline=Baseline()) is None


@pytest.mark.parametrize(
    ("new", "now_us", "gate"),
    [
        (arm(errors=20), 1, "errors: 20 of 1000"),  # beyond chance: the hold is not waited for
        (arm(20, errors=20), 1, "errors: 20 of 20"),
        (arm(slow=60), 1, "ttft_p99: "),
        (left(200), 1, "ttft_p99: "),  # none was answered
        (replace(arm(), ttfts=Counter({BEYOND: 1000})), 1, "ttft_p99: beyond all steps"),
        (replace(arm(), itls=Counter({bucket_of(13_000): 1000})), 1, "itl_p99: "),
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
    assert [verdict.outcome for verdict in found] == [GateOutcome.HOLDS, GateOutcome.BROKEN]


def test_drift_is_judged_before_any_request_and_holds_at_each_step_from_then_on() -> None:
    gates, measured = RolloutGates(drift=0.05), Drift(mean=0.05, largest=2.0, num_tokens=100)
    begun = replace(ROLLOUT, gates=gates, is_applied=False, epoch=0)
    for step in (0, 1):
        assert judged(arm(), arm(), gates=gates, step=step) is None
        assert judged(arm(), arm(), gates=gates, step=step, drift=measured) is not None
    assert too_far(begun, 1) is None
    assert too_far(replace(begun, drift=measured), 1) is None
    far = replace(begun, drift=replace(measured, mean=0.0501))
    assert too_far(replace(far, phase=RolloutPhase.PAUSED), 1) is None
    back = too_far(far, 1)
    assert back is not None
    assert back.reason == "drift: 0.0501 nats a token, at most 0.05 (largest 2.0000, of 100 tokens)"
    assert back.phase is RolloutPhase.ROLLED_BACK


def test_errors_need_no_old_revision_and_a_hang_alone_holds() -> None:
    errors_alone: dict[str, Any] = {"gates": RolloutGates(errors=0.5)}
    back = judged(ArmCounts(), arm(40, errors=30), 1, **errors_alone)
    assert back is not None
    assert (back.phase, back.reason) == (RolloutPhase.ROLLED_BACK, "errors: 30 of 40 requests, 75.00 %, at most 0.5 %")
    for new in (left(5000), left(200, answered=200)):
        assert judged(arm(), new, 100 * HOLD_US, **errors_alone) is None
    all_at_once: dict[str, Any] = {**errors_alone, "steps": (100,)}
    assert judged(ArmCounts(), left(50, answered=1000), **all_at_once) is None
    done = judged(ArmCounts(), left(50, answered=1000, after_us=10_000_000), **all_at_once)
    assert done is not None
    assert done.phase is RolloutPhase.DONE
    for old, new in (
        (arm(), left(200, after_us=50_000, answered=1000)),  # clients without patience say nothing
        (replace(arm(), left=Counter({bucket_of(30_000_000): 60})), left(50, answered=1000)),
        (replace(arm(), num_missed=60), replace(arm(), num_missed=50)),
    ):
        after = judged(old, new, **errors_alone)
        assert after is not None
        assert (after.phase, after.step) == (RolloutPhase.RUNNING, 1)


def test_a_p99_is_compared_by_steps_and_what_is_beyond_all_of_them_is_never_allowed() -> None:
    bucket = bucket_of(100_000)
    strict: dict[str, Any] = {"gates": RolloutGates(ttft_p99=0)}
    same, slower = (ArmCounts(1000, ttfts=Counter({step: 1000})) for step in (bucket, bucket + 1))
    after, back = judged(same, same, **strict), judged(same, slower, **strict)
    assert after is not None
    assert after.phase is RolloutPhase.RUNNING
    assert back is not None
    assert back.phase is RolloutPhase.ROLLED_BACK
    slow, endless = (ArmCounts(1000, ttfts=Counter({step: 1000})) for step in (bucket_of(28e6), BEYOND))
    back = judged(slow, endless, gates=RolloutGates(ttft_p99=1000))
    assert back is not None
    assert back.phase is RolloutPhase.ROLLED_BACK


def test_waits_that_clients_ended_make_no_p99_smaller() -> None:
    times = Counter({10: 950, 50: 50})
    assert p99_bucket_of(times) == p99_bucket_of(times, Counter({3: 10_000, 49: 1000})) == 50
    assert p99_bucket_of(times, Counter({70: 20})) == 70
    assert p99_bucket_of(Counter[int](), Counter({70: 20})) is None
