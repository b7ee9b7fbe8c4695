"""Lengths by published percentiles: between two of them a length is log-uniform."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class PercentileLength:
    """A distribution that has exactly these percentiles, which no log-normal one fitted to a trace does."""

    shares: tuple[float, ...]
    """Ascending, from 0 to 1."""
    lengths: tuple[float, ...]
    """Length at each share."""

    def draw(self, rng: Random) -> int:
        """A length."""
        return self.at(rng.random())

    def at(self, share: float) -> int:
        """The length below which this share of all lengths lies."""
        above = min(bisect.bisect_right(self.shares, share), len(self.shares) - 1)
        left, right = self.shares[above - 1], self.shares[above]
        low, high = math.log(self.lengths[above - 1]), math.log(self.lengths[above])
        return max(1, round(math.exp(low + (high - low) * (share - left) / (right - left))))


def of_percentiles(least: float, p10: float, p50: float, p90: float, p99: float, most: float) -> PercentileLength:
    """The percentiles that tables of traces have."""
    return PercentileLength((0.0, 0.1, 0.5, 0.9, 0.99, 1.0), (least, p10, p50, p90, p99, most))
