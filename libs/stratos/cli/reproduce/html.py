"""The report as one HTML page with its plots in it; it needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stratos.cli.load.plots.chart import Chart, Series, chart_svg
from stratos.cli.reproduce.cells import ANSWER_COLUMNS, answer_cells, origin_text, table_cells
from stratos.reproduce.catalogue import ReproducedRow

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:75em;color:#222}code{background:#f6f6f6}"
    "table{border-collapse:collapse;margin:1em 0;font-size:90%}td,th{border-bottom:1px solid #ddd;padding:.3em .8em;"
    "text-align:left;vertical-align:top}svg{max-width:100%;border:1px solid #eee}.origin{color:#666;font-size:85%}"
)


def html_report(rows: Sequence[ReproducedRow], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows, those without a document as not run."""
    title = "Published claims, reproduced"
    links = "".join(f'<li><a href="#{row.name}">{escape(row.title)}</a></li>' for row in rows)
    body = [f"<h1>{title}</h1>", f"<ol>{links}</ol>", *(_section(row, documents.get(row.name)) for row in rows)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        "</head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def plot_svg(plot: Mapping[str, Any]) -> str:
    """A plot of a row's document."""
    series = [Series(name=name, points=[(x, y) for x, y in points]) for name, points in plot["lines"].items()]
    return chart_svg(
        Chart(
            title=plot["title"],
            x_label=plot["x_label"],
            y_label=plot["y_label"],
            series=series,
            is_x_log=plot["is_x_log"],
            is_y_log=plot["is_y_log"],
        )
    )


def _section(row: ReproducedRow, document: Mapping[str, Any] | None) -> str:
    heading = f'<h2 id="{row.name}">{escape(row.title)}</h2>'
    if document is None:
        reason, flag = ("it needs a GPU; ", " --gpu") if row.needs_gpu else ("", "")
        return f"{heading}\n<p>Not run: {reason}<code>stratos reproduce {row.name}{flag}</code> runs it.</p>"
    parts = [heading, f"<p><code>{escape(document['command'])}</code></p>"]
    if document["answers"]:
        parts.append(_table(ANSWER_COLUMNS, [answer_cells(answer) for answer in document["answers"]]))
    for table in document["tables"]:
        parts += [f"<h3>{escape(table['title'])} ({table['kind']})</h3>", _table(table["columns"], table_cells(table))]
    parts += [plot_svg(plot) for plot in document["plots"]]
    parts += [f"<p>{escape(note)}</p>" for note in document["notes"]]
    return "\n".join([*parts, f'<p class="origin">{escape(origin_text(document))}</p>'])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
