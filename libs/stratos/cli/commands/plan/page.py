"""A calculator's sheet as one HTML page: steps and tables as they are printed, and a plot for each column of a table.

It needs no network.  A table whose first column is a number is drawn as lines over it; one that names its rows as a dot
for each, over its first column of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stratos.calculators.sheet import Cell, Grid, Sheet, sheet_text
from stratos.cli.load.plots.chart import Chart, Series, chart_svg

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:75em;color:#222}"
    "pre{overflow-x:auto;background:#f6f6f6;padding:1em}svg{max-width:100%;margin:.5em;border:1px solid #eee}"
)


def sheet_page(sheet: Sheet) -> str:
    """The page."""
    plots = [chart_svg(chart) for grid in sheet.grids for chart in grid_charts(grid)]
    body = [f"<h1>{escape(sheet.title)}</h1>", *plots, f"<pre>{escape(sheet_text(sheet))}</pre>"]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(sheet.title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def grid_charts(grid: Grid) -> list[Chart]:
    """A chart for each column of numbers but the one that they are drawn over; none where nothing varies."""
    numbers = [place for place in range(len(grid.columns)) if any(_is_number(row[place]) for row in grid.rows)]
    if len(grid.rows) < 2 or len(numbers) < 2:
        return []
    x, *columns = numbers
    return [
        Chart(title=f"{grid.title}: {grid.columns[y]}", x_label=grid.columns[x], y_label=grid.columns[y],
              series=_series(grid, x, y))
        for y in columns
    ]  # fmt: skip


def _series(grid: Grid, x: int, y: int) -> Sequence[Series]:
    points = [(row[0], (row[x], row[y])) for row in grid.rows if _is_number(row[x]) and _is_number(row[y])]
    if x == 0:
        return [Series(name=grid.columns[y], points=[(float(a), float(b)) for _, (a, b) in points])]
    return [Series(name=str(name), points=[(float(a), float(b))], is_line=False) for name, (a, b) in points]


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, str)
