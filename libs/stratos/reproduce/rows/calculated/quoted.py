"""A quoted claim beside a formula with the inputs that were quoted with it."""

from __future__ import annotations

from stratos.calculators.formula import Formula, Number
from stratos.reproduce.record.answer import ClaimAnswer
from stratos.reproduce.record.claim import QuotedClaim


def given(claim: QuotedClaim, formula: Formula | str, name: str = "", /, **inputs: Number) -> ClaimAnswer:
    """The claim, and what its inputs give; a formula that is given as text has this name."""
    return ClaimAnswer(claim=claim, recomputed=_named(formula, name)(**inputs))


def bounded(claim: QuotedClaim, formula: Formula | str, name: str = "", /, **inputs: Number) -> ClaimAnswer:
    """The claim, and how much its setting allows at most."""
    return ClaimAnswer(claim=claim, recomputed=_named(formula, name)(**inputs), is_bound=True)


def _named(formula: Formula | str, name: str) -> Formula:
    return formula if isinstance(formula, Formula) else Formula(name, formula)
