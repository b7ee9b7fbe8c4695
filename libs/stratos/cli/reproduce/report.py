"""All files of a report: ``reproduce.json``, ``.html``, ``.md``, and a plot each as SVG for the Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratos.cli.reproduce.cells import plot_file
from stratos.cli.reproduce.html import html_report, plot_svg
from stratos.cli.reproduce.markdown import markdown_report
from stratos.reproduce.catalogue import ReproducedRow

JSON_NAME, HTML_NAME, MARKDOWN_NAME = "reproduce.json", "reproduce.html", "reproduce.md"


def write_pages(folder: Path, rows: Sequence[ReproducedRow], documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Render what there is; the JSON is written row by row."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        for number, plot in enumerate(document["plots"]):
            (folder / plot_file(name, number)).write_text(plot_svg(plot) + "\n", encoding="utf-8")
    (folder / HTML_NAME).write_text(html_report(rows, documents), encoding="utf-8")
    (folder / MARKDOWN_NAME).write_text(markdown_report(rows, documents), encoding="utf-8")
