"""Our figures beside a claim: recomputed from its own inputs, measured here, and the verdict that follows by rule.

    its inputs give it              the formula with the quoted inputs is within the claimed interval
    its inputs give another figure  it is not
    within its bound                the formula is a limit, and the claim's least figure is not above it
    beyond its bound                it is
    measured below, within, above   where our own figure lies

A verdict joins those that apply.  No other words are used, so that a figure that changes changes the verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from stratos.calculators.formula import Figure, Number
from stratos.reproduce.record.claim import ROUNDING, QuotedClaim
from stratos.reproduce.record.figures import rounded

NOT_COMPARED = "no figure to compare"


class FigureKind(StrEnum):
    """How a figure came about: all but the last are the same, byte for byte, for the same inputs and seed."""

    CALCULATED = "calculated"
    SIMULATED = "simulated"
    COMMITTED = "committed"
    """Measured before, and read from the file that the figure names."""
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFigure:
    """A figure of ours."""

    name: str
    value: Number
    kind: FigureKind
    how: str = ""
    """Conditions that a reader needs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswer:
    """One claim with what was found."""

    claim: QuotedClaim
    recomputed: Figure | None = None
    is_bound: bool = False
    """``recomputed`` is the most that the claim's setting allows, not the claimed figure itself."""
    own: OwnFigure | None = None

    @property
    def verdict(self) -> str:
        """By the rules above."""
        if not self.claim.has_figure:
            return NOT_COMPARED
        found = []
        if self.recomputed is not None:
            found.append(self._arithmetic(self.recomputed.value))
        if self.own is not None:
            found.append(f"{self.own.kind} {self.claim.place(self.own.value)}")
        return "; ".join(found) or NOT_COMPARED

    def _arithmetic(self, value: Number) -> str:
        if not self.is_bound:
            given = "it" if self.claim.place(value) == "within" else "another figure"
            return f"its inputs give {given}"
        least = self.claim.least if math.isfinite(self.claim.least) else self.claim.most
        return "beyond its bound" if least > value * (1 + ROUNDING) else "within its bound"

    def as_json(self) -> dict[str, Any]:
        return {
            "claim": self.claim.id,
            "quoted": self.claim.quoted,
            "claimed": self.claim.figure_text(),
            "recomputed": None if self.recomputed is None else _figure_json(self.recomputed, is_bound=self.is_bound),
            "own": None if self.own is None else _own_json(self.own),
            "verdict": self.verdict,
        }


def _figure_json(figure: Figure, *, is_bound: bool) -> dict[str, Any]:
    return {
        "name": figure.name,
        "value": rounded(figure.value),
        "formula": figure.formula,
        "numbers": figure.numbers,
        "is_bound": is_bound,
    }


def _own_json(own: OwnFigure) -> dict[str, Any]:
    return {"name": own.name, "value": rounded(own.value), "kind": str(own.kind), "how": own.how}
