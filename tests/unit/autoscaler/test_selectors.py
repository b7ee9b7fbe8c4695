"""Label selectors as the API server passes them on, and quantities as Kubernetes writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.errors import BadRequest
from stratos_autoscaler.metrics_api.selectors import parse_selector, quantity

LABELS = {"model": "base", "role": "decode"}


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ("", True), ("model=base", True), ("model==base,role=decode", True), ("model=other", False),
        ("role!=prefill", True), ("role!=decode", False), ("role in (decode, prefill),model=base", True),
        ("role notin (prefill)", True), ("role notin (decode,prefill)", False), ("model", True), ("!model", False),
        ("zone", False), ("!zone", True), ("zone!=a", True), ("stratosserve.io/model=x", False),
    ],
)  # fmt: skip
def test_selectors(text: str, is_selected: bool) -> None:
    assert parse_selector(text)(LABELS) is is_selected


@pytest.mark.parametrize("text", ["a b", "=x", "a in b", "a in (b", "a>3", "-a=b"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_selector(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1, "1"), (10, "10"), (0.853, "853m"), (1.5, "1500m"), (12_000, "12k"), (12_001, "12001"),
        (3_000_000, "3M"), (0.0001, "1m"), (1234.5678, "1234568m"),
    ],
)  # fmt: skip
def test_quantities_are_canonical(value: float, text: str) -> None:
    assert quantity(value) == text


@given(st.integers(0, 10**15))
def test_a_quantity_is_the_number_to_the_thousandth(thousandths: int) -> None:
    text = quantity(thousandths / 1000)
    power = {"m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
    scale = Fraction(10) ** power.get(text[-1], 0)
    assert int(text.rstrip("mkMGTPE")) * scale == Fraction(thousandths, 1000)
    assert not (int(text.rstrip("mkMGTPE")) % 1000 == 0 and text != "0"), "the largest suffix that leaves it whole"
