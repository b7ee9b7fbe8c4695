"""Measured latencies are of the last seconds, and unknown afterwards."""

from __future__ import annotations

import pytest

from stratos.core.requests.records import ChoiceOutput, RequestKey
from stratos.engine.contract.results import RequestStats, StepResult
from stratos.worker.decode.latencies import Latencies, RecentMean

STATS = RequestStats(
    num_prompt_tokens=1, num_cached_tokens=0, num_transferred_tokens=0, num_recomputed_tokens=0, first_scheduled_s=None
)


def step(ended_s: float, *names: str, started: tuple[str, ...] = ()) -> StepResult:
    outputs = [ChoiceOutput(key=RequestKey(name, 0), index=0, offset=0, token_ids=[1]) for name in names]
    stats = {RequestKey(name, 0): STATS for name in started}
    return StepResult(step=0, outputs=outputs, ended_s=ended_s, started_stats=stats)


def test_a_mean_forgets_what_is_older_than_its_window() -> None:
    mean = RecentMean()
    assert mean.value(0.0) == 0.0
    mean.add(4.0, 100.0)
    mean.add(2.0, 107.0)
    assert mean.value(109.0) == pytest.approx(3.0)
    assert mean.value(116.0) == pytest.approx(2.0)
    assert mean.value(122.0) == 0.0
    mean.add(9.0, 500.0)
    assert mean.value(500.0) == pytest.approx(9.0)


def test_time_between_tokens_is_between_steps_of_streams_that_go_on() -> None:
    latencies = Latencies()
    latencies.on_step(step(10.0, "a", started=("a",)))
    assert latencies.next_token.value(10.0) == 0.0
    latencies.on_step(step(10.02, "a"))
    latencies.on_step(step(10.05))  # no output: prompts alone
    latencies.on_step(step(10.08, "a", "b", started=("b",)))
    assert latencies.next_token.value(10.1) == pytest.approx((0.02 + 0.06) / 2)
    latencies.on_step(step(15.0, "c", started=("c",)))  # idle before: nothing was waiting for a token
    assert latencies.next_token.value(15.0) == pytest.approx(0.04)


def test_time_to_first_token_begins_with_the_arrival() -> None:
    latencies = Latencies()
    latencies.on_first_token(1.0, 1.5)
    assert latencies.first_token.value(1.5) == pytest.approx(0.5)
