"""Times between tokens of one prompt's answer: how many there were, how many beyond a promise, and how they spread.

An ITL is the time between two tokens of one choice as they reach the gateway.  Tokens that come together share the time
since the one before them: k tokens after a gap g are k ITLs of g / k.  The first token of a choice ends none.

The spread is a histogram by the steps of ``steps``, of a bounded number: where an answer's ITLs are in more of them,
neighbours are put together at their upper end, so that it never says less than what was measured.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from stratos.common.buckets import sorted_counts
from stratos.common.changed import record
from stratos.core.ledger.steps import BEYOND, BOUNDS

MAX_STEPS = 16
"""Steps of one answer."""


@record(frozen=True, slots=True, kw_only=False)
class Itls:
    """ITLs of one prompt's answer."""

    num: int = 0
    num_over: int = 0
    """Beyond the promise."""
    steps: tuple[tuple[int, int], ...] = ()
    """Step and count, of those that are not empty."""

    def with_endless(self) -> Itls:
        """The same and one that never ended: the platform broke the answer off."""
        counts = Counter(dict(self.steps))
        counts[BEYOND] += 1
        return Itls(self.num + 1, self.num_over + 1, _joined(counts))


NO_ITLS = Itls()


class ItlCounter:
    """Counts the ITLs of an answer that comes; quick, since every token passes it.

    Args:
        promised_us: that a window is judged by; ``None`` where nothing is promised.
    """

    def __init__(self, promised_us: int | None = None) -> None:
        self._promised_us = promised_us
        self._num = self._num_over = 0
        self._counts: dict[int, int] = {}

    def add(self, gap_s: float, num_tokens: int) -> None:
        """So many tokens came together, so long after the one before them."""
        itl_us = gap_s * 1e6 / num_tokens
        self._num += num_tokens
        if self._promised_us is not None and itl_us > self._promised_us:
            self._num_over += num_tokens
        bucket = bisect_left(BOUNDS, itl_us)  # ``bucket_of``, without a call
        self._counts[bucket] = self._counts.get(bucket, 0) + num_tokens

    def add_sorted(self, gaps_s: Sequence[float]) -> None:
        """One token came after each of these gaps, the shortest first: neighbours are in few steps."""
        itls_us = [gap_s * 1e6 for gap_s in gaps_s]
        self._num += len(itls_us)
        if self._promised_us is not None:
            self._num_over += len(itls_us) - bisect_right(itls_us, self._promised_us)
        for bucket, num in sorted_counts(itls_us, BOUNDS):
            self._counts[bucket] = self._counts.get(bucket, 0) + num

    def itls(self) -> Itls:
        """All so far."""
        if not self._num:
            return NO_ITLS  # of an answer of one token, as many are
        return Itls(self._num, self._num_over, _joined(self._counts))


def _joined(counts: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Counts in at most ``MAX_STEPS`` steps: by twos, by fours, and so on, each at the upper end."""
    if len(counts) <= MAX_STEPS:  # as of nearly all answers
        return tuple(sorted(counts.items()))
    width, joined = 1, Counter(counts)
    while len(joined) > MAX_STEPS:
        width, joined = 2 * width, Counter()
        for bucket, count in counts.items():
            joined[min(BEYOND, bucket // width * width + width - 1)] += count
    return tuple(sorted(joined.items()))
