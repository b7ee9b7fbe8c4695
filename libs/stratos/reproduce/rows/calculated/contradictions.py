"""Published figures that contradict their own inputs: a chapter of sentences that the formulas write.

Claims, inputs and formulas are those of ``stratos plan claims``; no sentence has a typed figure.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratos.calculators.contradictions import ClaimedFigure, claimed_figures, recompute_claims
from stratos.calculators.formula import Number
from stratos.calculators.sheet import quantity
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultTable, RowResult


def measure(_: RowConditions) -> RowResult:
    """All of them; nothing is run."""
    claimed = claimed_figures()
    loads = recompute_claims().grids[0]
    broken = sum(row[-1] == "impossible" for row in loads.rows)
    return RowResult(
        answers=answers(claimed),
        tables=[
            ResultTable(title=loads.title, kind=FigureKind.CALCULATED, columns=loads.columns, rows=loads.rows),
        ],
        notes=[
            *(sentence(one) for one in claimed),
            f"Claim 4.12: {broken} of {len(loads.rows)} loads break Little's law.",
        ],
    )


def answers(claimed: Sequence[ClaimedFigure]) -> list[ClaimAnswer]:
    """Each figure beside what its own inputs give."""
    return [
        ClaimAnswer(
            claim=exactly(one.claim, f"{one.text}: {quantity(one.name, one.value)}", one.value),
            recomputed=one.recomputed(),
        )
        for one in claimed
    ]


def sentence(one: ClaimedFigure) -> str:
    """The contradiction in words."""
    given = one.recomputed().value
    return (
        f"Claim {one.claim}, {one.text}: {quantity(one.name, one.value)} is claimed, "
        f"{quantity(one.name, given)} is what its own inputs give ({ratio_text(one.value, given)}); {one.why}."
    )


def ratio_text(claimed: Number, given: Number) -> str:
    """How far the two are apart."""
    if claimed == given:
        return "the same"
    more, less = max(claimed, given), min(claimed, given)
    side = "more" if given > claimed else "less"
    return f"{more / less:.3g} times {side}" if less else f"{side}, from {claimed:g}"
