"""Numbers as documents hold them."""

from __future__ import annotations

from stratos.calculators.formula import Number

DIGITS = 6


def rounded(value: Number) -> Number:
    """Six significant digits of a fraction; whole numbers stay."""
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
