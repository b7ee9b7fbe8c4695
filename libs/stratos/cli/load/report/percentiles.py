"""Distributions as means and percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from stratos.core.rules.quantile import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Figures of many values; all 0 where there is none."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    """Standard deviation of the values themselves, not of a sample."""
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


def distribution(values: Iterable[float]) -> Distribution:
    """Figures of values in any order."""
    ordered = sorted(values)
    if not ordered:
        return Distribution()
    mean = statistics.fmean(ordered)
    p50, p95, p99 = (percentile(ordered, percent) for percent in (50, 95, 99))
    return Distribution(
        count=len(ordered),
        mean=mean,
        std=math.sqrt(statistics.fmean((one - mean) ** 2 for one in ordered)),
        p50=p50,
        p95=p95,
        p99=p99,
        most=ordered[-1],
    )
