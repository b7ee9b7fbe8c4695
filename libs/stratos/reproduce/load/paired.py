"""Median of paired differences with an interval that assumes no distribution. Pure.

Of n sorted values, the k-th least and the k-th greatest enclose the true median unless fewer than k values fell on one
side of it, each with a chance of one half: for n = 12 and k = 3 that is 1 - 2 * (1 + 12 + 66) / 4096 = 96.1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from stratos.calculators.formula import Number

WANTED_COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class MedianInterval:
    """Median, and an interval that has the true one with the chance ``coverage``."""

    median: float
    least: float
    most: float
    coverage: float

    def cells(self) -> tuple[Number, Number, Number, Number]:
        """Cells of a table, in the order of the fields."""
        return self.median, self.least, self.most, self.coverage


def median_interval(values: Sequence[float]) -> MedianInterval:
    """The narrowest interval with the wanted coverage; fewer than six values give their range and what it covers."""
    ordered, count = sorted(values), len(values)
    rank = 1
    while rank + 1 <= count // 2 and _coverage(count, rank + 1) >= WANTED_COVERAGE:
        rank += 1
    return MedianInterval(
        median=median(ordered), least=ordered[rank - 1], most=ordered[count - rank], coverage=_coverage(count, rank)
    )


def _coverage(count: int, rank: int) -> float:
    return max(0.0, 1 - 2 * sum(comb(count, below) for below in range(rank)) / 2.0**count)
