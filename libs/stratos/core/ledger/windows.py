"""Windows over which a plan promises p99s: what an entry adds to its window, and what becomes of a window.

A window is a span of ``promise_window_s`` of one tenant under one plan; an entry is in that of its arrival.  It keeps
four counts: prompts with a time to the first token, those of them beyond the promise, and the same of ITLs (``itls``),
of which an answer has nearly as many as tokens.  The p99 (nearest rank) is beyond the promise exactly where more than
one in a hundred is, so the judgement needs no percentile and has no error, and counts of any number of gateways add
up.  A histogram beside them is for people, who want to see the p99: its steps are of 2 %, and what is shown is the
upper end of one.

    stake    what an entry adds to the credit of its window should that miss: ``credit_percent`` of its charge, in
             hundredths of micro-units, at most what its own credit has left of the charge
    credit   of a window that missed: all stakes, rounded down once

The store's script computes a window from its counts with every entry, so writers and their order do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.ledger.itls import Itls
from stratos.core.ledger.pricing import Amounts, Times
from stratos.core.ledger.steps import BEYOND, ONE_IN, bucket_of
from stratos.core.tenancy.plan import Plan

PER_MICRO_UNIT = 100
"""Parts of a micro-unit that stakes are counted in: a percent of one."""
WINDOW_MEASURES = ("windows", "missed_windows", "window_credit")
"""Sums that come from windows, and from no single entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured time beside its promise."""

    bucket: int
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowShare:
    """Part of an entry in its window."""

    window_s: int
    ttft: Sample | None = None
    """``None`` where nothing was promised, or nothing can be said."""
    itls: Itls | None = None
    """The same; what an answer without a second token has says nothing."""
    stake: int = 0
    """Hundredths of micro-units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseWindow:
    """A window as the store has it."""

    plan: str
    window_s: int
    number: int
    """Number of the window since the epoch."""
    num_ttft: int = 0
    num_ttft_over: int = 0
    num_itl: int = 0
    """ITLs, not prompts."""
    num_itl_over: int = 0
    stake: int = 0
    credit: int = 0
    """Micro-units."""
    ttft_p99_us: int | None = None
    """Upper end of its step; ``None`` where it is not known, or beyond all bounds."""
    itl_p99_us: int | None = None

    @property
    def begin_unix_ms(self) -> int:
        """Its beginning."""
        return self.number * self.window_s * 1000

    @property
    def end_unix_ms(self) -> int:
        """Its end, which is the next one's beginning."""
        return (self.number + 1) * self.window_s * 1000

    @property
    def is_judged(self) -> bool:
        """Judgement is possible: a time was measured."""
        return self.num_ttft + self.num_itl > 0

    @property
    def is_missed(self) -> bool:
        """Some p99 is beyond its promise."""
        return _is_missed(self.num_ttft, self.num_ttft_over) or _is_missed(self.num_itl, self.num_itl_over)


def _is_missed(num: int, num_over: int) -> bool:
    return num_over > num // ONE_IN


def window_share(
    plan: Plan, times: Times, amounts: Amounts, *, has_failed: bool = False, waited_us: int | None = None
) -> WindowShare | None:
    """The part of an entry in its window.

    Args:
        plan: with the promises at the request's time.
        times: as the client saw them.
        amounts: of the entry.
        has_failed: the platform ended the request with an error; a time that never came is beyond every bound.
        waited_us: of a client that left before its first token, how long it had waited.

    Returns:
        ``None`` where the plan promises no p99.
    """
    if plan.ttft_p99_ms is None and plan.itl_p99_ms is None:
        return None
    ttft = _sample(times.ttft_us, plan.ttft_p99_ms, is_endless=has_failed and times.ttft_us is None)
    if ttft is None and waited_us is not None and plan.ttft_p99_ms is not None:
        left = _sample(waited_us, plan.ttft_p99_ms)
        ttft = left if left is not None and left.is_over else None  # else it may have come in time
    itls = None
    if plan.itl_p99_ms is not None:
        itls = times.itls.with_endless() if has_failed else times.itls
        itls = itls if itls.num else None
    return WindowShare(window_s=plan.promise_window_s, ttft=ttft, itls=itls, stake=stake_of(plan, amounts))


def stake_of(plan: Plan, amounts: Amounts) -> int:
    """Credit of one entry should its window miss, in hundredths of micro-units."""
    left = PER_MICRO_UNIT * (amounts.net - amounts.credit)
    return min(amounts.net * plan.discounts.credit_percent, left)


def _sample(measured_us: int | None, promised_ms: int | None, *, is_endless: bool = False) -> Sample | None:
    if promised_ms is None:
        return None
    if is_endless:
        return Sample(bucket=BEYOND, is_over=True)
    if measured_us is None:
        return None
    return Sample(bucket=bucket_of(measured_us), is_over=measured_us > promised_ms * 1000)
