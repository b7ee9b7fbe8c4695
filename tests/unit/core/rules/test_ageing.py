"""Ageing: when a class rises, and how many dispatches aged requests get."""

from __future__ import annotations

import pytest

from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS
from stratos.core.rules.ageing import AgedQuota, effective_class


@pytest.mark.parametrize(
    ("priority_class", "waited_s", "expected"),
    [(2, 0.0, 2), (2, 1.999, 2), (2, 2.0, 1), (2, 3.999, 1), (2, 4.0, 0), (2, 1e9, 0), (1, 2.0, 0), (0, 60.0, 0)],
)
def test_a_class_rises_at_each_step_and_stops_at_the_top(priority_class: int, waited_s: float, expected: int) -> None:
    assert effective_class(priority_class, waited_s, 2.0) == expected


@pytest.mark.parametrize(("waited_s", "expected"), [(1.999, 3), (2.0, 2), (4.0, 2), (1e9, 2)])
def test_the_batch_class_never_rises_above_the_default_one(waited_s: float, expected: int) -> None:
    assert effective_class(BATCH_CLASS, waited_s, 2.0) == expected
    assert DEFAULT_PRIORITY_CLASS == 2


def test_a_clock_that_went_back_does_not_lower_a_class() -> None:
    assert effective_class(3, -100.0, 2.0) == 3


def test_at_most_one_of_ten_dispatches_is_aged() -> None:
    quota, aged = AgedQuota(10), []
    for _ in range(40):
        aged.append(quota.is_open)
        quota.count(is_aged=quota.is_open)
    assert [place for place, is_aged in enumerate(aged) if is_aged] == [0, 10, 20, 30]


def test_an_unused_turn_stays_open_and_is_not_saved_up() -> None:
    quota = AgedQuota(3)
    for _ in range(9):
        quota.count(is_aged=False)
    assert quota.is_open
    quota.count(is_aged=True)
    assert not quota.is_open


def test_a_quota_of_one_never_closes() -> None:
    quota = AgedQuota(1)
    quota.count(is_aged=True)
    assert quota.is_open
