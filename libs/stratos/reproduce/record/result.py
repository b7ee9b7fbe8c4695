"""All that a row found: answers to claims, tables, plots and remarks; and the part that must not change by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratos.calculators.formula import Number
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind
from stratos.reproduce.record.figures import rounded

Cell = str | Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """Figures of one kind; columns are named with their units."""

    title: str
    kind: FigureKind
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def as_json(self) -> dict[str, Any]:
        cells = [[cell if isinstance(cell, str) else rounded(cell) for cell in row] for row in self.rows]
        assert all(len(row) == len(self.columns) for row in cells), self.title
        return {"title": self.title, "kind": str(self.kind), "columns": list(self.columns), "rows": cells}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPlot:
    """Points by the name of their line."""

    title: str
    kind: FigureKind
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[Number, Number]]]
    is_x_log: bool = False
    is_y_log: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "kind": str(self.kind),
            "x_label": self.x_label,
            "y_label": self.y_label,
            "is_x_log": self.is_x_log,
            "is_y_log": self.is_y_log,
            "lines": {name: [[rounded(x), rounded(y)] for x, y in points] for name, points in self.lines.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row's content; every text in it is made from figures or says how they were found."""

    answers: Sequence[ClaimAnswer] = ()
    tables: Sequence[ResultTable] = ()
    plots: Sequence[ResultPlot] = ()
    notes: Sequence[str] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {
            "answers": [answer.as_json() for answer in self.answers],
            "tables": [table.as_json() for table in self.tables],
            "plots": [plot.as_json() for plot in self.plots],
            "notes": list(self.notes),
        }


def unchanging_part(content: Mapping[str, Any]) -> str:
    """JSON of what the same inputs and seed give on every machine: all that was not measured.

    Args:
        content: of a row, as ``RowResult.as_json`` has it.
    """
    measured = str(FigureKind.MEASURED)
    answers = [
        {key: value for key, value in answer.items() if key not in ("own", "verdict")}
        if answer["own"] is not None and answer["own"]["kind"] == measured
        else answer
        for answer in content["answers"]
    ]
    kept = {name: [part for part in content[name] if part["kind"] != measured] for name in ("tables", "plots")}
    return json.dumps({"answers": answers, **kept}, indent=1)
