"""The chapter of contradictions is written by the formulas: an input that changes changes the sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratos.calculators.contradictions import claimed_figures
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.rows.calculated.contradictions import answers, measure, sentence

BY_ID = {one.claim: one for one in claimed_figures()}


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("0.8", ("0.84", "7.978")),
        ("0.10", ("47,000,000", "12,720,000")),
        ("1.2", ("4,000", "327,680")),
        ("1.9", ("17.5 GB", "35 GB")),
        ("1.12", ("460,000", "460,800,000")),
        ("4.2", ("82 GB", "171.8 GB")),
        ("0.5", ("2,560", "1 is what")),
    ],
)
def test_both_figures_are_in_the_sentence(claim: str, words: tuple[str, ...]) -> None:
    text = sentence(BY_ID[claim])
    assert [word for word in words if word not in text] == []


def test_a_changed_input_changes_the_sentence_and_the_verdict() -> None:
    one = BY_ID["0.8"]
    cheaper = replace(one, inputs={**one.inputs, "usd_per_month": one.inputs["usd_per_month"] * 0.84 / 7.98})
    assert [answer.verdict for answer in answers([one, cheaper])] == [
        "its inputs give another figure",
        "its inputs give it",
    ]
    assert "9.5 times more" in sentence(one)
    assert "9.5 times more" not in sentence(cheaper)


def test_every_claimed_figure_has_its_sentence_and_its_answer() -> None:
    found = measure(RowConditions())
    assert [answer.claim.id for answer in found.answers] == list(BY_ID)
    assert len(found.notes) == len(BY_ID) + 1
    assert "6 of 8 loads break Little's law" in found.notes[-1]
    assert {answer.verdict for answer in found.answers} == {"its inputs give another figure"}
