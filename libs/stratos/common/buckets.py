"""Counts of histograms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


def sorted_counts(amounts: Sequence[float], bounds: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Buckets that have some of many amounts, and how many: two searches for each bucket, none for each amount.

    Args:
        amounts: the smallest first.
        bounds: upper ends of buckets; what is above the last one is in a bucket more.
    """
    begin = 0
    while begin < len(amounts):
        bucket = bisect_left(bounds, amounts[begin])
        end = len(amounts) if bucket == len(bounds) else bisect_right(amounts, bounds[bucket], begin)
        yield bucket, end - begin
        begin = end
