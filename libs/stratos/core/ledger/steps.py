"""Steps of the histograms of promised times: 2 % each, from 100 us to 300 s, and one beyond."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

FIRST_BOUND_US = 100
STEP = 1.02
NUM_BUCKETS = 756
"""The last bound but one is 300 s; the last bucket has no bound."""
BEYOND = NUM_BUCKETS - 1
ONE_IN = 100
"""Times of which one may be beyond a p99."""
BOUNDS = tuple(FIRST_BOUND_US * STEP**bucket for bucket in range(BEYOND))
"""Upper ends, in microseconds, of all but the last."""


def bucket_of(measured_us: float) -> int:
    """The step of the histogram that a time is in."""
    return bisect_left(BOUNDS, measured_us)


def bound_us(bucket: int) -> int | None:
    """Upper end of a step, rounded up; ``None`` for the last one."""
    return None if bucket >= BEYOND else math.ceil(BOUNDS[bucket])


def p99_bucket(counts: Sequence[int]) -> int | None:
    """The step with the p99 (nearest rank) of a histogram; the store's script has the same rule."""
    above = sum(counts) // ONE_IN
    seen = 0
    for bucket in range(len(counts) - 1, -1, -1):
        seen += counts[bucket]
        if seen > above:
            return bucket
    return None
