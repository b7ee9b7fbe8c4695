"""Arrival processes: rates, spread, seeds, and what is refused."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.cli.load.workload.arrivals import (
    BurstArrivals,
    ClosedLoop,
    GammaArrivals,
    TraceArrivals,
    parse_arrivals,
)
from stratos.common.errors import BadRequest


def gaps(arrivals: GammaArrivals, count: int, seed: int = 0) -> list[float]:
    times = list(itertools.islice(arrivals.times(Random(seed)), count))
    return [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_gaps_have_the_mean_and_the_spread_that_was_asked_for(rate: float, cv: float) -> None:
    found = gaps(GammaArrivals(rate, cv), 20_000)
    mean = statistics.fmean(found)
    assert mean == pytest.approx(1 / rate, rel=0.05)
    assert statistics.pstdev(found) / mean == pytest.approx(cv, rel=0.06, abs=1e-6)


def test_a_poisson_process_has_as_much_variance_as_mean_in_every_window() -> None:
    counts = [0] * 500
    for time_s in itertools.takewhile(lambda t: t < 500, GammaArrivals(20.0).times(Random(3))):
        counts[int(time_s)] += 1
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, rel=0.15)


@given(seed=st.integers(), rate=st.floats(0.01, 1000), cv=st.floats(0, 5))
def test_times_ascend_and_a_seed_gives_the_same_ones(seed: int, rate: float, cv: float) -> None:
    arrivals = GammaArrivals(rate, cv)
    first, again = (list(itertools.islice(arrivals.times(Random(seed)), 20)) for _ in range(2))
    assert first == again == sorted(first)
    assert first[0] >= 0


def test_a_burst_is_at_one_moment() -> None:
    assert list(itertools.islice(BurstArrivals(3, 10.0).times(Random(0)), 7)) == [0, 0, 0, 10, 10, 10, 20]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("closed:8", ClosedLoop(8)),
        ("poisson:2.5", GammaArrivals(2.5)),
        ("gamma:4,0.5", GammaArrivals(4.0, 0.5)),
        ("burst:50,10", BurstArrivals(50, 10.0)),
        ("trace:a/b.jsonl", TraceArrivals(Path("a/b.jsonl"))),
    ],
)
def test_forms_are_read(text: str, expected: object) -> None:
    assert parse_arrivals(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "8", "closed:0", "closed:1.5", "poisson:0", "poisson:-1", "poisson:x", "gamma:1", "gamma:1,-1", "burst:5",
     "burst:5,0", "trace:", "uniform:3", "closed:inf", "poisson:inf", "poisson:nan", "gamma:1,inf", "burst:1,inf"],
)  # fmt: skip
def test_other_forms_are_refused_with_all_that_there_are(text: str) -> None:
    with pytest.raises(BadRequest, match=r"closed:STREAMS, poisson:RATE.* trace:FILE, not") as refused:
        parse_arrivals(text)
    assert refused.value.param == "--arrivals"
