"""Interval of a median: ranks by the binomial distribution, worked by hand."""

from __future__ import annotations

from stratos.reproduce.load.paired import median_interval


def test_of_twelve_values_the_third_from_both_ends_enclose_the_median() -> None:
    found = median_interval([float(value) for value in (12, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7, 6)])
    assert found.cells() == (6.5, 3.0, 10.0, 1 - 2 * (1 + 12 + 66) / 4096)


def test_few_values_give_their_range_and_say_how_little_it_covers() -> None:
    assert median_interval([2.0, 1.0]).cells() == (1.5, 1.0, 2.0, 0.5)
    assert median_interval([4.0]).cells() == (4.0, 4.0, 4.0, 0.0)
