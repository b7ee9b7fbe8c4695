"""Numbers as documents hold them."""

from __future__ import annotations

import math

from stratos.calculators.formula import Number

DIGITS = 6


def rounded(value: Number) -> Number:
    """Six significant digits of a fraction; whole numbers stay.

    Raises:
        ValueError: it is not finite: such a figure would lie within any claim, and JSON has none.
    """
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise ValueError(f"a figure is {value}")
    return float(f"{value:.{DIGITS}g}")
