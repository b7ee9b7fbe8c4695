"""Workers without batches: what they bring to premium requests, and cost in lines, by engines on a virtual clock."""

from __future__ import annotations

import pytest

from scripts.bench.clear_workers import STEPS, BesideFleet, Result
from stratos.core.rules.quantile import percentile

SECONDS = 5.0
NUM_LINES = 16


def run(num_workers: int, clear_ratio: float, num_lines: int = NUM_LINES) -> Result:
    return BesideFleet(num_workers, STEPS["20 ms, 8 slots"], clear_ratio, num_lines, 8).run(SECONDS)


def p99(found: Result) -> float:
    return percentile(sorted(found.first_tokens_s), 99)


def test_one_of_two_workers_without_batches_keeps_the_times_of_premium_requests() -> None:
    alone, beside, without = run(2, 0.25, 0), run(2, 0.25), run(2, 0.0)
    assert p99(beside) <= 1.1 * p99(alone)
    assert p99(without) > 1.5 * p99(alone)
    assert beside.num_lines == pytest.approx(without.num_lines / 2, rel=0.1), "the other one is as full as before"


def test_a_single_worker_does_as_before() -> None:
    found, without = run(1, 0.25), run(1, 0.0)
    assert (found.first_tokens_s, found.num_lines) == (without.first_tokens_s, without.num_lines)
