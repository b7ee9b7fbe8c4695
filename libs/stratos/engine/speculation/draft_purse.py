"""Time that drafts may lose: what they have saved, up to a bound, and a hundredth of the steps' time.

Whether a draft pays is chosen by estimates: chances, and what steps cost.  Where these are wrong, the balance of what
drafts took and what they saved shows it, and they rest until the hundredth has made good for it.
"""

from __future__ import annotations

SHARE = 0.01
"""Of the time of steps, that drafts may lose for good."""
CREDIT_S, CREDIT_STEPS = 0.5, 64
"""Most that is put by, what there is at first, and what may be owed; no more than so many steps take."""


class DraftPurse:
    """The purse of one engine."""

    def __init__(self) -> None:
        self._left_s = CREDIT_S
        self.busy_s, self._num_steps = 0.0, 0
        """Time of all steps, and how many they were."""

    @property
    def _credit_s(self) -> float:
        return min(CREDIT_S, CREDIT_STEPS * self.busy_s / max(1, self._num_steps) or CREDIT_S)

    @property
    def may_begin(self) -> bool:
        """Whether a proposer may do work for a sequence that its drafts have to earn first."""
        return self._left_s > 0

    @property
    def may_go_on(self) -> bool:
        """Whether there may be drafts at all."""
        return self._left_s > -self._credit_s

    def pass_step(self, seconds: float) -> None:
        """Note a step that took so long."""
        self.busy_s, self._num_steps = self.busy_s + seconds, self._num_steps + 1
        self.settle(0.0, SHARE * seconds)

    def settle(self, cost_s: float, saved_s: float) -> None:
        """Note what drafts took, and what they saved."""
        self._left_s = min(self._credit_s, self._left_s + saved_s - cost_s)
