"""A published claim: its id, its words, and the figure in them as an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratos.calculators.formula import Number, plain

ROUNDING = 0.05
"""Share by which a figure may be off and still be the claimed one: published figures have two digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedClaim:
    """Words of a publication with a figure in them.

    A figure that is given as a range ("2-3x") is an interval, and so is one that is a bound ("< 4 %").
    """

    id: str
    quoted: str
    least: Number = -math.inf
    most: Number = math.inf
    unit: str = ""

    @property
    def has_figure(self) -> bool:
        """The claim can be compared with a number."""
        return math.isfinite(self.least) or math.isfinite(self.most)

    def place(self, value: Number) -> str:
        """``below``, ``within`` or ``above`` the claimed interval, whose ends are as exact as print is."""
        if math.isfinite(self.least) and value < self.least - ROUNDING * abs(self.least):
            return "below"
        if math.isfinite(self.most) and value > self.most + ROUNDING * abs(self.most):
            return "above"
        return "within"

    def figure_text(self) -> str:
        """The interval for people; bytes as GB."""
        scale, unit = (1e9, "GB") if self.unit == "bytes" else (1, self.unit)
        ends = [plain(end / scale) for end in dict.fromkeys((self.least, self.most)) if math.isfinite(end)]
        if len(ends) == 2 or self.least == self.most:
            text = " to ".join(ends)
        elif math.isfinite(self.least):
            text = f"at least {ends[0]}"
        else:
            text = f"at most {ends[0]}" if ends else "no figure"
        return f"{text} {unit}".strip()


def exactly(claim: str, quoted: str, value: Number, unit: str = "") -> QuotedClaim:
    """A claim of one figure."""
    return QuotedClaim(id=claim, quoted=quoted, least=value, most=value, unit=unit)


def at_least(claim: str, quoted: str, value: Number, unit: str = "") -> QuotedClaim:
    """A claim that is kept from this figure on."""
    return QuotedClaim(id=claim, quoted=quoted, least=value, unit=unit)


def at_most(claim: str, quoted: str, value: Number, unit: str = "") -> QuotedClaim:
    """A claim that is kept up to this figure."""
    return QuotedClaim(id=claim, quoted=quoted, most=value, unit=unit)


def between(claim: str, quoted: str, least: Number, most: Number, unit: str = "") -> QuotedClaim:
    """A claim of a range."""
    return QuotedClaim(id=claim, quoted=quoted, least=least, most=most, unit=unit)
