"""One HTML page of runs: conditions, table and plots; it needs no network and holds no keys."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stratos.cli.load.harness import LoadMeasurement
from stratos.cli.load.plots.chart import chart_svg
from stratos.cli.load.plots.charts import distribution_charts, load_charts, timeline_chart
from stratos.cli.load.report.table import reports_text

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:90em;color:#222}pre{overflow-x:auto;background:#f6f6f6;padding:1em}"
    "svg{max-width:100%;margin:.5em;border:1px solid #eee}td,th{padding:.1em 1em .1em 0;text-align:left}"
)


def load_page(runs: Sequence[LoadMeasurement], title: str, *, is_search: bool = False) -> str:
    """The page.

    Args:
        runs: in their order, at least one.
        title: of the page.
        is_search: the runs are of one kind at different loads, so latency is drawn over the load, too.
    """
    charts = [*(load_charts(runs) if is_search else ()), *distribution_charts(runs)]
    charts += [] if is_search else [timeline_chart(run) for run in runs]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<pre>{escape(reports_text([(run.arrivals, run.report) for run in runs]))}</pre>",
        *(chart_svg(chart) for chart in charts),
        "<h2>Conditions</h2>",
        *(_conditions(run) for run in runs),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _conditions(run: LoadMeasurement) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in run.conditions.items()
    )
    return f"<table>{rows}</table>"
