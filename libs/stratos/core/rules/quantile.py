"""Quantiles: of values that are all there, and of the most recent ones of a stream."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Value at a percentile, between two values on the line that joins them, as NumPy has it and other tools print.

    Args:
        ordered: ascending, at least one.
        percent: 0 to 100.
    """
    place = percent / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class RecentQuantile:
    """Nearest-rank quantile of the last ``window`` values; follows a change of the stream within one window.

    Args:
        fraction: which quantile, in (0, 1].
        default: stands for the quantile until ``min_samples`` values were seen.
        window: values remembered; adding costs O(log window) comparisons and one move of a short list.
        min_samples: fewer values say nothing.
    """

    def __init__(self, fraction: float, *, default: int, window: int = 512, min_samples: int = 20) -> None:
        assert 0 < fraction <= 1
        self._fraction = fraction
        self._default = default
        self._window = window
        self._min_samples = min_samples
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []

    def add(self, value: int) -> None:
        """Take note of a value; the oldest one beyond the window is forgotten."""
        self._recent.append(value)
        insort(self._ordered, value)
        if len(self._recent) > self._window:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    @property
    def value(self) -> int:
        if len(self._ordered) < self._min_samples:
            return self._default
        return self._ordered[math.ceil(self._fraction * len(self._ordered)) - 1]
