"""Bounds of what a model may lose, and the verdict: one stratum beyond its bound is enough, whatever the mean says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stratos.quality.paired import Interval


class StratumVerdict(StrEnum):
    """Place of a loss beside its bound."""

    WITHIN = "within"
    """All of its interval is below the bound."""
    BEYOND = "beyond"
    """The loss is above the bound, and no accident: its interval lies above zero."""
    OPEN = "open"
    """The interval reaches over the bound, or around zero: more text would tell."""


class Verdict(StrEnum):
    """Verdict of a whole evaluation."""

    ACCEPTABLE = "acceptable"
    NOT_ACCEPTABLE = "not acceptable"
    OPEN = "open: more text is needed"
    """No stratum is beyond its bound, but the mean is not shown to be within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBounds:
    """Largest losses; of perplexity relative, of scores in shares of one."""

    mean: float = 0.05
    """Perplexity over all tokens."""
    stratum: float = 0.10
    """Perplexity in one stratum."""
    score: float = 0.05
    """Likeliest tokens that are right, and completions that parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Loss of a model in a stratum, by one measure; negative is a gain."""

    stratum: str
    measure: str
    num_samples: int
    """Tokens, or completions."""
    reference: float
    candidate: float
    loss: Interval
    bound: float

    @property
    def verdict(self) -> StratumVerdict:
        """Place by bound and interval."""
        if self.loss.value > self.bound and self.loss.low > 0:
            return StratumVerdict.BEYOND
        return StratumVerdict.WITHIN if self.loss.high <= self.bound else StratumVerdict.OPEN

    @property
    def excess(self) -> float:
        """Loss in bounds; the greatest is the worst."""
        return self.loss.value / self.bound


def worst_first(losses: Sequence[Loss]) -> list[Loss]:
    """Sort losses: beyond their bound first, then by how much of the bound they take."""
    return sorted(losses, key=lambda loss: (loss.verdict is not StratumVerdict.BEYOND, -loss.excess))


def verdict_of(losses: Sequence[Loss]) -> Verdict:
    """Verdict of all losses together; that of the mean is in the stratum ``all``."""
    if any(loss.verdict is StratumVerdict.BEYOND for loss in losses):
        return Verdict.NOT_ACCEPTABLE
    is_shown = all(loss.verdict is StratumVerdict.WITHIN for loss in losses if loss.stratum == "all")
    return Verdict.ACCEPTABLE if is_shown else Verdict.OPEN
