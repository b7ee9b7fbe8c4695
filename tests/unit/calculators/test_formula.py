"""Formulas: the text is what is computed, and what is printed computes to the same."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.calculators.formula import Formula, evaluate, plain

AREA = Formula("area_m2", "ceil(width * height) + max(0, extra - 2 ** 3)")
sizes = st.integers(1, 10**12) | st.floats(1e-3, 1e9)


@given(width=sizes, height=sizes, extra=sizes)
def test_a_step_has_the_value_of_its_text(width: float, height: float, extra: float) -> None:
    step = AREA(width=width, height=height, extra=extra)
    names = {"width": width, "height": height, "extra": extra}
    assert step.value == AREA.of(**names) == evaluate(ast.parse(step.formula, mode="eval").body, names)


@given(width=st.integers(1, 10**9), height=st.integers(1, 10**6))
def test_the_printed_numbers_compute_to_the_value(width: int, height: int) -> None:
    step = AREA(width=width, height=height, extra=10)
    assert (
        evaluate(ast.parse(step.numbers.replace(",", "").replace("max(0 ", "max(0, "), mode="eval").body, {})
        == step.value
    )


def test_a_formula_takes_its_names_and_no_others() -> None:
    with pytest.raises(AssertionError, match="width"):
        AREA(height=1, extra=1)
    with pytest.raises(AssertionError, match="depth"):
        AREA(width=1, height=1, extra=1, depth=1)


@pytest.mark.parametrize("text", ["a.b", "a if b else a", "[a]", "'text'", "True and a"])
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        evaluate(ast.parse(text, mode="eval").body, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567, "1,234,567"), (2.0, "2"), (0.8413, "0.8413"), (12345.678, "12,345.7"), (1e-7, "1e-07")],
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    assert plain(value) == text
