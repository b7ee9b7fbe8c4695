"""Intervals hold what they say, and a stratum beyond its bound is not hidden by the mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stratos.quality.paired import Interval, as_relative, paired_mean
from stratos.quality.verdict import Loss, StratumVerdict, Verdict, verdict_of, worst_first


def test_intervals_hold_the_truth_in_about_95_of_100_draws() -> None:
    rng, held, draws = np.random.default_rng(1), 0, 60
    for draw in range(draws):
        counts = rng.integers(20, 60, size=60)
        window_effect = rng.normal(0.02, 0.1, size=60)  # tokens of a window vary together
        interval = paired_mean(window_effect * counts, counts, seed=draw)
        held += interval.low <= 0.02 <= interval.high
    assert 0.85 * draws <= held < draws


def test_equal_seeds_give_equal_intervals_and_one_window_says_nothing() -> None:
    differences, counts = np.array([1.0, -2.0, 3.0]), np.array([10, 0, 30])
    assert paired_mean(differences, counts, 7) == paired_mean(differences, counts, 7)
    assert paired_mean(differences, counts, 7).value == pytest.approx(4 / 40)
    alone = paired_mean(differences[:1], counts[:1], 0)
    assert (alone.low, alone.high) == (-math.inf, math.inf)
    assert as_relative(alone).high == math.inf
    assert as_relative(alone).low == -1.0


def loss(stratum: str, value: float, low: float, high: float, bound: float = 0.1) -> Loss:
    interval = Interval(value=value, low=low, high=high)
    return Loss(
        stratum=stratum, measure="perplexity", num_samples=9, reference=1, candidate=1, loss=interval, bound=bound
    )


def test_a_loss_that_no_float_holds_is_beyond_its_bound() -> None:
    found = as_relative(Interval(value=800.0, low=790.0, high=810.0))
    assert 1e20 < found.low <= found.value <= found.high < math.inf
    assert loss("all", found.value, found.low, found.high).verdict is StratumVerdict.BEYOND


def test_one_stratum_beyond_its_bound_decides_although_the_mean_is_good() -> None:
    mean, names = loss("all", 0.01, 0.0, 0.02), loss("names: seen before", 0.3, 0.2, 0.4)
    assert mean.verdict is StratumVerdict.WITHIN
    assert names.verdict is StratumVerdict.BEYOND
    assert verdict_of([mean, names]) is Verdict.NOT_ACCEPTABLE
    assert verdict_of([mean]) is Verdict.ACCEPTABLE


def test_noise_is_no_loss_and_a_wide_mean_is_open() -> None:
    noise = loss("kind: mixed", 0.3, -0.1, 0.7)
    assert noise.verdict is StratumVerdict.OPEN
    assert verdict_of([loss("all", 0.0, -0.01, 0.01), noise]) is Verdict.ACCEPTABLE
    assert verdict_of([loss("all", 0.05, 0.01, 0.2)]) is Verdict.OPEN


def test_the_worst_comes_first() -> None:
    losses = [
        loss("all", 0.0, -0.1, 0.01),
        loss("noise", 5.0, -1, 9),
        loss("bad", 0.2, 0.1, 0.3),
        loss("gain", -1, -2, 0),
    ]
    assert [one.stratum for one in worst_first(losses)] == ["bad", "noise", "all", "gain"]
