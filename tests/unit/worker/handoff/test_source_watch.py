"""A receiver leaves a source that hangs, gets nowhere with its job, or would be later than computing here."""

from __future__ import annotations

import dataclasses

import pytest

from stratos.common.errors import WorkerLost
from stratos.common.slow_peers import SourceSlow
from stratos.engine.contract.results import StepResult, StepShares
from stratos.worker.handoff.records import Progress, SourcePhase
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_watch import SourceWatch
from stratos.worker.settings import HandoffConfig

CONFIG = HandoffConfig(idle_timeout_s=5.0, stall_timeout_s=2.0, spill_wait_s=1.0, spill_ratio=4.0)
QUEUED = Progress(phase=SourcePhase.QUEUED, queue_position=3, engine_step=7, wait_s=3.0, compute_s=0.5)
COMPUTING = Progress(phase=SourcePhase.COMPUTING, queue_position=0, engine_step=7)


def watch(*, can_spill: bool = True) -> SourceWatch:
    return SourceWatch(CONFIG, 0.0, 1000, can_spill=can_spill)


@pytest.mark.parametrize(
    ("wait_s", "now_s", "num_queued_here", "leaves"),
    [(1.9, 0.1, 0, False), (2.1, 0.1, 0, True), (2.1, 0.1, 1000, False), (4.1, 0.1, 1000, True), (0.0, 2.1, 0, True)],
)
@pytest.mark.parametrize("phase", [SourcePhase.QUEUED, SourcePhase.LOADING_ADAPTER])
def test_a_wait_is_weighed_against_computing_here(
    phase: SourcePhase, wait_s: float, now_s: float, num_queued_here: int, leaves: bool
) -> None:
    progress = dataclasses.replace(QUEUED, phase=phase, wait_s=wait_s)
    if leaves:
        with pytest.raises(SourceSlow, match="would begin after"):
            watch().check(progress, now_s, num_queued_here)
    watch(can_spill=False).check(progress, now_s, num_queued_here)
    if not leaves:
        watch().check(progress, now_s, num_queued_here)


def test_short_waits_and_unknown_ones_are_waited_for() -> None:
    watch().check(dataclasses.replace(QUEUED, wait_s=0.9, compute_s=0.001), 0.5, 0)
    watch().check(dataclasses.replace(QUEUED, wait_s=0.0, compute_s=0.0), 60.0, 0)


def test_a_granted_job_must_go_on_whatever_other_jobs_do() -> None:
    subject, step = watch(), 7
    subject.grant(10.0)
    for tenth in range(101, 400):
        now_s, step = tenth / 10, step + 1
        progress = dataclasses.replace(COMPUTING, engine_step=step, num_tokens=min(tenth, 200))
        if now_s - 20.0 > CONFIG.idle_timeout_s:
            with pytest.raises(SourceSlow, match="did nothing for this hand-off"):
                subject.check(progress, now_s, 0)
            return
        subject.check(progress, now_s, 0)


def test_frames_and_slow_steps_count() -> None:
    subject = watch()
    subject.grant(0.0)
    subject.note_frame(4.0)
    subject.check(COMPUTING, 8.0, 0)
    slow = dataclasses.replace(COMPUTING, engine_step=8, slow_step_s=1.0)
    subject.check(slow, 18.0, 0)
    with pytest.raises(SourceSlow):
        subject.check(dataclasses.replace(slow, engine_step=9), 21.0, 0)


def test_a_step_counter_that_stands_still_is_a_lost_source() -> None:
    subject = watch()
    subject.check(COMPUTING, 0.0, 0)
    subject.check(COMPUTING, 1.9, 0)
    with pytest.raises(WorkerLost, match="step counter"):
        subject.check(COMPUTING, 2.1, 0)


def test_a_source_estimates_by_the_tokens_of_its_recent_jobs() -> None:
    jobs = PrefillJobs()
    for leg in ("a", "b", "c"):
        jobs.open(leg, 1000)
    assert (jobs.wait_s("c"), jobs.compute_s(1000)) == (0.0, 0.0), "nothing was measured"
    shares = StepShares(legs={"a": 100}, num_tokens=100)
    jobs.on_step(StepResult(step=1, began_s=1.0, ended_s=1.5, shares=shares))
    assert jobs.compute_s(1000) == pytest.approx(5.0)
    assert jobs.wait_s("c") == pytest.approx(10.0)
    assert jobs.wait_s("a") == 0.0
    jobs.on_step(StepResult(step=2, began_s=2.0, ended_s=2.1))
    assert jobs.compute_s(1000) == pytest.approx(5.0), "steps without jobs say nothing"
