"""Charts of runs: distributions of latencies, latencies over time, and how they grow with the load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stratos.cli.load.harness import LoadMeasurement
from stratos.cli.load.measured import MeasuredRequest
from stratos.cli.load.plots.chart import Chart, Series
from stratos.core.rules.quantile import percentile

NUM_POINTS = 200
"""Percentiles of a drawn distribution."""
Values = Callable[[MeasuredRequest], Iterable[float]]
_LATENCIES: tuple[tuple[str, Values], ...] = (
    ("TTFT", lambda request: (1e3 * request.ttft_s,)),
    ("ITL", lambda request: (1e3 * gap_s for gap_s in request.gaps_s)),
    ("end to end", lambda request: (1e3 * request.e2e_s,)),
)


def distribution_charts(runs: Sequence[LoadMeasurement]) -> list[Chart]:
    """A chart for each kind of latency, a line for each run."""
    return [
        Chart(
            title=f"{name}: share of values below",
            x_label="ms",
            y_label="share",
            series=[Series(name=run.arrivals, points=_shares(_completed(run), values)) for run in runs],
            is_x_log=True,
        )
        for name, values in _LATENCIES
    ]


def timeline_chart(run: LoadMeasurement) -> Chart:
    """TTFT of each request over its intended arrival; refused ones lie on the axis."""
    begin_s = min((request.intended_s for request in run.result.requests), default=0.0)
    done = [(request.intended_s - begin_s, 1e3 * request.ttft_s) for request in _completed(run)]
    failed = [(r.intended_s - begin_s, 0.0) for r in run.result.requests if not r.is_completed]
    series = [Series(name="TTFT", points=done, is_line=False)]
    if failed:
        series.append(Series(name="failed", points=failed, is_line=False))
    return Chart(
        title=f"{run.arrivals}: TTFT by intended arrival", x_label="s after the beginning", y_label="ms", series=series
    )


def load_charts(runs: Sequence[LoadMeasurement]) -> list[Chart]:
    """Latencies and goodput over the load of runs of one kind, such as those of a search."""
    ordered = sorted(runs, key=_load)
    figures = [(_load(run), run.report.all) for run in ordered]
    latencies = [
        Series(name="TTFT p50", points=[(load, one.ttft.p50) for load, one in figures]),
        Series(name="TTFT p99", points=[(load, one.ttft.p99) for load, one in figures]),
        Series(name="TPOT p50", points=[(load, one.tpot.p50) for load, one in figures]),
    ]
    rates = [Series(name="completed/s", points=[(load, one.requests_per_s) for load, one in figures])]
    if all(one.goodput_per_s is not None for _, one in figures):
        rates.append(Series(name="good/s", points=[(load, one.goodput_per_s or 0.0) for load, one in figures]))
    label = f"load ({ordered[0].arrivals.partition(':')[0]})"
    return [
        Chart(title="Latency by load", x_label=label, y_label="ms", series=latencies, is_y_log=True),
        Chart(title="Requests by load", x_label=label, y_label="requests/s", series=rates),
    ]


def _load(run: LoadMeasurement) -> float:
    """First number of the arrivals."""
    return float(run.arrivals.partition(":")[2].partition(",")[0])


def _completed(run: LoadMeasurement) -> list[MeasuredRequest]:
    return [request for request in run.result.requests if request.is_completed]


def _shares(requests: Iterable[MeasuredRequest], values: Values) -> list[tuple[float, float]]:
    ordered = sorted(value for request in requests for value in values(request))
    if not ordered:
        return []
    shares = (number / NUM_POINTS for number in range(NUM_POINTS + 1))
    return [(percentile(ordered, 100 * share), share) for share in shares]
