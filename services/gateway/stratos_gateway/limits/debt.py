"""Amount that is missing from a bucket at least: what one gateway took, less what was refilled since."""

from __future__ import annotations


class Debt:
    """Begins at 0, as if the bucket were full then, or at what it lacks.

    A report names it, so that a bucket which was full when the amounts were taken has refilled since, before Redis
    heard of them.

    Args:
        now: seconds.
        amount: that is missing by then.
    """

    def __init__(self, now: float, amount: float = 0.0) -> None:
        self._amount = amount
        self._at = now

    def add(self, amount: float, rate_per_s: float, now: float) -> None:
        """The amount was taken; below 0 where it came back."""
        self._amount = max(0.0, self.at(rate_per_s, now) + amount)
        self._at = now

    def at(self, rate_per_s: float, now: float) -> float:
        """Amount at ``now``."""
        return max(0.0, self._amount - rate_per_s * (now - self._at))
