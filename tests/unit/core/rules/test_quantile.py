"""Quantiles: of whole lists as NumPy has them, of recent values by nearest rank, with a default and a window."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.core.rules.quantile import RecentQuantile, percentile
from tests.support.examples import examples


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percent: float) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-6)


def test_the_default_stands_until_there_are_enough_values() -> None:
    quantile = RecentQuantile(0.5, default=99, min_samples=3)
    for value in (1, 2):
        quantile.add(value)
        assert quantile.value == 99
    quantile.add(3)
    assert quantile.value == 2


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.001, 1), (0.1, 1), (0.101, 2), (0.5, 5), (0.9, 9), (0.95, 10), (1.0, 10)]
)
def test_it_is_the_nearest_rank(fraction: float, expected: int) -> None:
    quantile = RecentQuantile(fraction, default=0, min_samples=1)
    for value in (7, 3, 10, 1, 5, 9, 2, 8, 4, 6):
        quantile.add(value)
    assert quantile.value == expected


def test_values_beyond_the_window_are_forgotten() -> None:
    quantile = RecentQuantile(1.0, default=0, window=3, min_samples=1)
    seen = []
    for value in (9, 5, 5, 1, 2):
        quantile.add(value)
        seen.append(quantile.value)
    assert seen == [9, 9, 9, 5, 5]


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 12), st.floats(0.01, 1.0, allow_nan=False))
def test_it_equals_sorting_the_window(values: list[int], window: int, fraction: float) -> None:
    quantile = RecentQuantile(fraction, default=-1, window=window, min_samples=1)
    for count, value in enumerate(values, 1):
        quantile.add(value)
        recent = sorted(values[max(0, count - window) : count])
        assert quantile.value == recent[math.ceil(fraction * len(recent)) - 1]


@pytest.mark.parametrize("fraction", [0.0, 1.01, -0.5])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(AssertionError):
        RecentQuantile(fraction, default=0)
