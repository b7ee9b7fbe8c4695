"""The one rule for a step counter that stands still."""

from __future__ import annotations

from stratos.core.step_watch import StepWatch


def test_standing_still_counts_only_with_work() -> None:
    watch = StepWatch(0.0)
    watch.observe(1, 0.0, is_computing=False, slow_step_s=0.0)
    watch.observe(1, 60.0, is_computing=False, slow_step_s=0.0)
    watch.observe(1, 61.0, is_computing=True, slow_step_s=0.0)
    watch.observe(1, 67.0, is_computing=True, slow_step_s=0.0)
    assert watch.stalled_s(67.0) == 6
    assert watch.is_stalled(67.0, 5)
    watch.observe(1, 67.0, is_computing=True, slow_step_s=1.5)
    assert not watch.is_stalled(67.0, 5)
    watch.observe(2, 67.0, is_computing=True, slow_step_s=1.5)
    assert watch.stalled_s(67.0) == 0


def test_an_idle_engine_is_never_stalled_even_when_reports_stop() -> None:
    watch = StepWatch(0.0)
    watch.observe(1, 0.0, is_computing=False)
    assert not watch.is_stalled(60.0, 5)


def test_a_restart_gives_the_whole_time_again() -> None:
    watch = StepWatch(0.0)
    watch.observe(1, 0.0, is_computing=True)
    watch.restart(4.0)
    assert not watch.is_stalled(9.0, 5)
    assert watch.is_stalled(9.5, 5)
