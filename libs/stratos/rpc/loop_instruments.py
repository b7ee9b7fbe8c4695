"""Instruments that one thread alone changes, for what happens with every token: they take no lock.

The thread that answers a scrape reads them while they change.  A sum may then lack what its count already has, until
the next scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from stratos.common.buckets import sorted_counts


class LoopCounter(Counter):
    """A count that the event loop's thread alone raises."""

    def _metric_init(self) -> None:
        self._number = 0.0

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add an amount, 0 or more; exemplars are not kept."""
        self._number += amount

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("_total", {}, self._number, None, None),)


class LoopHistogram(Histogram):
    """A distribution that the event loop's thread alone observes."""

    def _metric_init(self) -> None:
        self._counts = [0] * len(self._upper_bounds)
        self._amounts = 0.0

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an amount in its bucket; exemplars are not kept."""
        self._counts[bisect_left(self._upper_bounds, amount)] += 1
        self._amounts += amount

    def observe_sorted(self, amounts: Sequence[float]) -> None:
        """Count many amounts at once, the smallest first: neighbours are in few buckets."""
        for bucket, num in sorted_counts(amounts, self._upper_bounds):
            self._counts[bucket] += num
        self._amounts += sum(amounts)

    def _child_samples(self) -> Iterable[Sample]:
        samples, amounts, number = list[Sample](), self._amounts, 0
        for bound, count in zip(self._upper_bounds, self._counts, strict=True):
            number += count
            samples.append(Sample("_bucket", {"le": floatToGoString(bound)}, number, None, None))  # type: ignore[no-untyped-call]
        samples.append(Sample("_count", {}, number, None, None))
        samples.append(Sample("_sum", {}, amounts, None, None))
        return samples
