"""The report as one HTML page with its plots; it needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from stratos.cli.evaluate.forest import forest_svg
from stratos.cli.evaluate.table import COLUMNS, loss_cells, model_text

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:75em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0;font-size:90%}td,th{border-bottom:1px solid #ddd;padding:.2em .8em;"
    "text-align:left}svg{max-width:100%;border:1px solid #eee;margin:.5em 0}"
)


def report_page(report: Mapping[str, Any]) -> str:
    """The page."""
    title = f"B beside A: {report['verdict']}"
    measures = dict.fromkeys(loss["measure"] for loss in report["losses"])
    plots = [forest_svg([loss for loss in report["losses"] if loss["measure"] == name], name) for name in measures]
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in loss_cells(loss)) for loss in report["losses"]]
    texts = ", ".join(f"{text['name']} ({text['sha256'][:12]})" for text in report["texts"])
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>A: {escape(model_text(report['reference']))}<br>B: {escape(model_text(report['candidate']))}</p>",
        f"<p>{report['num_windows']} windows of {report['window']} tokens, {report['num_prompts']} completions; "
        f"texts: {escape(texts)}</p>",
        *plots,
        f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )
