"""Arrivals of published traces, which are burstier than a Poisson process or have days and nights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

HOUR_S = 3600.0
DAY_LOAD = (
    0.35, 0.28, 0.24, 0.22, 0.24, 0.32, 0.50, 0.80, 1.25, 1.60, 1.75, 1.65,
    1.45, 1.65, 1.80, 1.80, 1.70, 1.50, 1.30, 1.20, 1.15, 1.00, 0.75, 0.50,
)  # fmt: skip
"""Rates of the hours of a day, of which the ratios count: night, a morning's rise, a dip at noon. Chosen."""
WEEK_LOAD = tuple(hour * (1.15 if day < 5 else 0.625) for day in range(7) for hour in DAY_LOAD)


@dataclass(frozen=True, slots=True)
class ModulatedArrivals:
    """A Poisson process whose rate is drawn for each window, so windows differ more than chance makes them.

    With a rate of mean r and relative variance v per window of T seconds, the index of dispersion of counts is
    1 + r T v: 4.0 over 10 s at 5.53/s needs v = 0.054.
    """

    rate_per_s: float
    dispersion: float
    """Variance over mean of the counts of windows."""
    window_s: float

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        variance = (self.dispersion - 1) / (self.rate_per_s * self.window_s)
        for window in itertools.count():
            rate = self.rate_per_s * rng.gammavariate(1 / variance, variance)
            at_s = rng.expovariate(rate)
            while at_s < self.window_s:
                yield window * self.window_s + at_s
                at_s += rng.expovariate(rate)


@dataclass(frozen=True, slots=True)
class ClusteredArrivals:
    """Clusters of requests with pauses between them."""

    rate_per_s: float
    """Within a cluster."""
    cluster_size: float
    """Mean of a geometric distribution."""
    least_pause_s: float
    most_pause_s: float

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        at_s = 0.0
        while True:
            yield at_s
            if rng.random() < 1 / self.cluster_size:
                at_s += rng.uniform(self.least_pause_s, self.most_pause_s)
            else:
                at_s += rng.expovariate(self.rate_per_s)


@dataclass(frozen=True, slots=True)
class PeriodicArrivals:
    """Gamma gaps in a time that runs fast while the rate is high and slowly while it is low; begins at midnight."""

    rate_per_s: float
    """Mean over a period."""
    cv: float
    hours: Sequence[float] = DAY_LOAD
    """Rates of the hours of a period, of which the ratios count."""

    def times(self, rng: Random) -> Iterator[float]:
        """Seconds of all arrivals, ascending, without end."""
        mean = sum(self.hours) / len(self.hours)
        left = rng.gammavariate(1 / self.cv**2, self.cv**2)  # in units of the mean gap
        for hour in itertools.count():
            rate = self.rate_per_s * self.hours[hour % len(self.hours)] / mean
            at_s = 0.0
            while at_s + left / rate < HOUR_S:
                at_s += left / rate
                yield hour * HOUR_S + at_s
                left = rng.gammavariate(1 / self.cv**2, self.cv**2)
            left -= (HOUR_S - at_s) * rate
