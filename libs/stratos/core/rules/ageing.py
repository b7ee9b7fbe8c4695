"""Ageing: one class up at 2.0 s of waiting and at each further 2 s, within a quota.

While a higher class is backlogged, aged requests together get at most one of ten dispatches, oldest first.
The batch class rises to the default one and no further.
"""

from __future__ import annotations

from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS

AGEING_STEP_S = 2.0
"""Default wait for each class up."""
DISPATCHES_PER_AGED = 10
"""Default share of the quota: one of so many."""


def effective_class(priority_class: int, waited_s: float, step_s: float) -> int:
    """Class after ageing; 0 is the top."""
    top = DEFAULT_PRIORITY_CLASS if priority_class >= BATCH_CLASS else 0
    return max(top, priority_class - int(max(0.0, waited_s) / step_s))


class AgedQuota:
    """Counts dispatches so that in any run of ``dispatches_per_aged`` at most one is an aged one."""

    def __init__(self, dispatches_per_aged: int) -> None:
        self._gap = dispatches_per_aged - 1
        self._since_aged = self._gap

    @property
    def is_open(self) -> bool:
        """An aged request may go now."""
        return self._since_aged >= self._gap

    def count(self, *, is_aged: bool) -> None:
        """A dispatch happened."""
        self._since_aged = 0 if is_aged else min(self._gap, self._since_aged + 1)
