"""Time that drafts may lose: what they have saved, up to a bound, and a hundredth of the steps' time.

Whether a draft pays is chosen by estimates: chances, and what steps cost.  Where these are wrong, the balance of what
drafts took and what they saved shows it, and they rest until the hundredth has made good for it.
"""

from __future__ import annotations

SHARE = 0.01
"""Of the time of steps, that drafts may lose for good."""
CREDIT_S = 0.5
"""Most that is put by, what there is at first, and what may be owed."""


class DraftPurse:
    """The purse of one engine."""

    def __init__(self) -> None:
        self._left_s = CREDIT_S
        self.busy_s = 0.0
        """Time of all steps."""

    @property
    def may_begin(self) -> bool:
        """Whether a proposer may do work for a sequence that its drafts have to earn first."""
        return self._left_s > 0

    @property
    def may_go_on(self) -> bool:
        """Whether there may be drafts at all."""
        return self._left_s > -CREDIT_S

    def pass_step(self, seconds: float) -> None:
        """Note a step that took so long."""
        self.busy_s += seconds
        self.settle(0.0, SHARE * seconds)

    def settle(self, cost_s: float, saved_s: float) -> None:
        """Note what drafts took, and what they saved."""
        self._left_s = min(CREDIT_S, self._left_s + saved_s - cost_s)
