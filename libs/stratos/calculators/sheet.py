"""Answer of a calculator: steps with their formulas, tables, and published answers to the same question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from stratos.calculators.formula import Figure, Number, plain

Cell = str | Number
SAME = 0.01
"""Published answers within this share of ours are not shown."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; its columns are named with their units."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published answer to the same question, with the id of the claim."""

    claim: str
    call: str
    name: str
    value: Number
    why: str
    """Why it differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    title: str
    figures: tuple[Figure, ...]
    grids: tuple[Grid, ...] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Number:
        """The value of a step."""
        return next(step.value for step in self.figures if step.name == name)

    def differing(self) -> list[Published]:
        """Published answers that are not ours."""
        return [one for one in self.published if abs(one.value - self[one.name]) > SAME * abs(self[one.name])]

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "figures": [
                {"name": s.name, "value": s.value, "formula": s.formula, "numbers": s.numbers, "source": s.source}
                for s in self.figures
            ],
            "tables": [
                {"title": g.title, "rows": [dict(zip(g.columns, row, strict=True)) for row in g.rows]}
                for g in self.grids
            ],
            "published": [
                {"claim": p.claim, "call": p.call, "name": p.name, "value": p.value, "ours": self[p.name], "why": p.why}
                for p in self.differing()
            ],
            "notes": list(self.notes),
        }


def sheet_text(sheet: Sheet) -> str:
    """Lines for a terminal."""
    parts = [sheet.title, "\n".join(line for step in sheet.figures for line in _step_lines(step))]
    parts += [grid_text(grid) for grid in sheet.grids]
    parts += _published_parts(sheet)
    return "\n\n".join([*parts, *sheet.notes])


def _published_parts(sheet: Sheet) -> list[str]:
    """A paragraph for each call that answers otherwise."""
    parts = []
    for (claim, call), answers in groupby(sheet.differing(), key=lambda one: (one.claim, one.call)):
        lines = [
            f"  {p.name} = {quantity(p.name, p.value)}, ours {quantity(p.name, sheet[p.name])}: {p.why}"
            for p in answers
        ]
        parts.append("\n".join((f"published claim {claim}: {call}", *lines)))
    return parts


def _step_lines(step: Figure) -> list[str]:
    value = quantity(step.name, step.value)
    comment = f"  ({step.source})" if step.source else ""
    if not step.formula:
        return [f"  {step.name} = {value}{comment}"]
    return [f"  {step.name} = {step.formula}{comment}", f"    = {step.numbers}", f"    = {value}"]


def grid_text(grid: Grid) -> str:
    """The table with its columns aligned."""
    rows = [grid.columns, *(tuple(cell if isinstance(cell, str) else plain(cell) for cell in r) for r in grid.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(grid.columns))]
    return "\n".join([grid.title, *("  " + _aligned(row, widths) for row in rows)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    return "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()


def quantity(name: str, value: Number) -> str:
    """A value with the unit that its name ends in."""
    if name.endswith("_bytes") and value >= 1e6:
        return f"{plain(round(value))} ({value / 1e9:,.4g} GB)"
    return plain(value)
