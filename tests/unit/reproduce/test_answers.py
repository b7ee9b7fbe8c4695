"""Verdicts follow from figures by rule: another figure, another verdict."""

from __future__ import annotations

import math

import pytest

from stratos.calculators.formula import Formula
from stratos.reproduce.record.answer import NOT_COMPARED, ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import QuotedClaim, exactly

GAIN = Formula("gain", "rows * longest / tokens")


def own(value: float) -> OwnFigure:
    return OwnFigure(name="gain", value=value, kind=FigureKind.MEASURED)


@pytest.mark.parametrize(
    ("claimed", "verdict"),
    [
        (4.7, "its inputs give it"),
        (4.5, "its inputs give it"),  # 4.706 is within 5 % of it
        (4.0, "its inputs give another figure"),
        (5.0, "its inputs give another figure"),
    ],
)
def test_a_figure_is_compared_with_what_its_inputs_give(claimed: float, verdict: str) -> None:
    answer = ClaimAnswer(claim=exactly("3.6", "x", claimed), recomputed=GAIN(rows=8, longest=500, tokens=850))
    assert answer.verdict == verdict


@pytest.mark.parametrize(("least", "verdict"), [(2, "within its bound"), (3, "beyond its bound")])
def test_a_range_whose_least_figure_is_above_the_bound_is_beyond_it(least: float, verdict: str) -> None:
    claim = QuotedClaim(id="4.10", quoted="x", least=least, most=5)
    answer = ClaimAnswer(claim=claim, recomputed=GAIN(rows=3, longest=500, tokens=650), is_bound=True)
    assert answer.verdict == verdict


@pytest.mark.parametrize(("value", "place"), [(1.8, "below"), (1.95, "within"), (3.1, "within"), (3.2, "above")])
def test_our_own_figure_is_placed_by_the_claimed_range(value: float, place: str) -> None:
    answer = ClaimAnswer(claim=QuotedClaim(id="1.6", quoted="2-3x", least=2, most=3), own=own(value))
    assert answer.verdict == f"measured {place}"


def test_verdicts_are_joined_and_a_claim_without_a_figure_has_none() -> None:
    both = ClaimAnswer(claim=exactly("3.6", "x", 4.7), recomputed=GAIN(rows=8, longest=500, tokens=850), own=own(1))
    assert both.verdict == "its inputs give it; measured below"
    assert ClaimAnswer(claim=QuotedClaim(id="0.11", quoted="x"), own=own(1)).verdict == NOT_COMPARED
    assert ClaimAnswer(claim=exactly("3.6", "x", 4.7)).verdict == NOT_COMPARED


def test_bounds_are_open_on_one_side() -> None:
    waste = QuotedClaim(id="1.5", quoted="< 4 %", most=0.04)
    assert [waste.place(value) for value in (0.0, 0.041, 0.05)] == ["within", "within", "above"]
    assert [claim.figure_text() for claim in (waste, QuotedClaim(id="1", quoted="x", least=3, unit="x"))] == [
        "at most 0.04",
        "at least 3 x",
    ]
    assert exactly("3.6", "x", 170, "tokens/s").figure_text() == "170 tokens/s"
    assert exactly("0.1", "x", 3.36e9, "bytes").figure_text() == "3.36 GB"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_no_answer(value: float) -> None:
    """It would be measured within any claim."""
    with pytest.raises(ValueError, match="a figure is"):
        ClaimAnswer(claim=exactly("3.6", "x", 4.7), own=own(value)).as_json()
