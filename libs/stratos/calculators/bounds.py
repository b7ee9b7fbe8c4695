"""Inputs that make no sense, refused by name before anything is computed with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from stratos.common.errors import BadRequest

T = TypeVar("T")
MOST = 1e18
"""Maximum of any input: above it nothing that is asked for exists."""
LEAST = 1 / MOST
"""Minimum of one that is above 0: quotients of what is smaller have no end."""


def above_zero(**values: float) -> None:
    """Refuse values that are not above 0, each by its name."""
    for name, value in values.items():
        if not LEAST <= value <= MOST:
            raise _refused(name, "above 0", value)


def not_below_zero(**values: float) -> None:
    """Refuse values below 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and 0 <= value <= MOST):
            raise _refused(name, "0 or more", value)


def shares(**values: float) -> None:
    """Refuse values that are not in (0, 1]."""
    for name, value in values.items():
        if not LEAST <= value <= 1:
            raise _refused(name, "above 0 and at most 1", value)


def one_of(name: str, value: str, known: Mapping[str, T]) -> T:
    """The entry of that name.

    Raises:
        BadRequest: there is none; names those that there are.
    """
    if value not in known:
        raise BadRequest(f"{name}: {value!r} is not known; known: {', '.join(known)}", param=name)
    return known[value]


def _refused(name: str, expected: str, value: float) -> BadRequest:
    return BadRequest(f"{name} must be {expected}, not {value}", param=name)
