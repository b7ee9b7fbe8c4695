"""The report as Markdown; plots are files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratos.cli.reproduce.cells import ANSWER_COLUMNS, answer_cells, origin_text, plot_file, table_cells
from stratos.reproduce.catalogue import ReproducedRow


def markdown_report(rows: Sequence[ReproducedRow], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows, those without a document as not run."""
    parts = ["# Published claims, reproduced", _summary(rows, documents)]
    for row in rows:
        parts += [
            f"## {row.title}",
            *(_row_parts(row, documents[row.name]) if row.name in documents else [_missing(row)]),
        ]
    return "\n\n".join(parts) + "\n"


def _summary(rows: Sequence[ReproducedRow], documents: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        (row.name, answer["claim"], answer["claimed"], answer["verdict"])
        for row in rows
        if row.name in documents
        for answer in documents[row.name]["answers"]
    ]
    return _table(("row", "claim", "claimed", "verdict"), lines)


def _missing(row: ReproducedRow) -> str:
    return (
        f"Not run: it needs a GPU; `stratos reproduce {row.name} --gpu` runs it there."
        if row.needs_gpu
        else f"Not run yet: `stratos reproduce {row.name}`."
    )


def _row_parts(row: ReproducedRow, document: Mapping[str, Any]) -> list[str]:
    parts = [f"`{document['command']}`: {origin_text(document)}."]
    if document["answers"]:
        parts.append(_table(ANSWER_COLUMNS, [answer_cells(answer) for answer in document["answers"]]))
    for table in document["tables"]:
        parts += [f"{table['title']} ({table['kind']}):", _table(table["columns"], table_cells(table))]
    parts += [f"![{plot['title']}]({plot_file(row.name, number)})" for number, plot in enumerate(document["plots"])]
    return [*parts, *("\n".join(f"- {note}" for note in document["notes"]) or "",)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
