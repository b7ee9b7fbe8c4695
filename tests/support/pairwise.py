"""Grids of parameters where every two values meet by default, and all of them in the thorough run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

Pair = tuple[int, Any, int, Any]


def pairwise(*axes: Sequence[Any]) -> list[Any]:
    """Rows of the full grid; those that add no pair of values to the rows before them are ``slow``.

    Of 2 x 2 x 2 values 4 rows cover all pairs.  A row that adds most pairs is taken first, of equals the first one of
    the grid, so the choice is the same in every run.
    """
    grid = list(itertools.product(*axes))
    missing = {pair for row in grid for pair in _pairs(row)}
    taken = set()
    while missing:
        best = max(grid, key=lambda row: len(missing & _pairs(row)))
        taken.add(best)
        missing -= _pairs(best)
    return thinned(grid, taken)


def thinned(rows: Iterable[tuple[Any, ...]], kept: Iterable[tuple[Any, ...]]) -> list[Any]:
    """All rows; those that are not kept run in the thorough run only."""
    chosen = set(kept)
    return [pytest.param(*row, marks=() if row in chosen else pytest.mark.slow) for row in rows]


def _pairs(row: tuple[Any, ...]) -> set[Pair]:
    places = itertools.combinations(range(len(row)), 2)
    return {(first, row[first], second, row[second]) for first, second in places}
