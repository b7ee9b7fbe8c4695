"""A report for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratos.cli.load.report.client import ClientVerdict
from stratos.cli.load.report.percentiles import Distribution
from stratos.cli.load.report.summary import LoadFigures, LoadReport

_TITLES = ("", "requests/s", "good/s", "tokens/s", "failed", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99",
           "e2e p50", "p95", "p99")  # fmt: skip
FEW = 100
"""Up to so many requests p99 lies between the two slowest."""


def reports_text(reports: Sequence[tuple[str, LoadReport]]) -> str:
    """Runs as lines, with their tenants, classes and models below each; latencies in milliseconds.

    Args:
        reports: with the name of each.
    """
    rows: list[tuple[str, ...]] = [_TITLES]
    for name, report in reports:
        rows.append(_row(name, report.all))
        for parts in (report.by_tenant, report.by_class, report.by_model):
            rows += [_row(f"  {key or '-'}", part) for key, part in parts.items()]
    lines = _aligned(rows)
    for name, report in reports:
        lines += [f"{name}: {line}" for line in _few_lines(report.all)]
        lines += [f"{name}: {count} x {reason}" for reason, count in report.refusals.items()]
        lines += [f"{name}: {line}" for line in _client_lines(report.client)]
    return "\n".join(lines)


def _row(name: str, figures: LoadFigures) -> tuple[str, ...]:
    good = "-" if figures.goodput_per_s is None else f"{figures.goodput_per_s:.2f}"
    latencies = (text for found in (figures.ttft, figures.itl, figures.e2e) for text in _three(found))
    rates = (f"{figures.requests_per_s:.2f}", good, f"{figures.output_tokens_per_s:.1f}", str(figures.num_failed))
    return (name, *rates, *latencies)


def _three(found: Distribution) -> Iterable[str]:
    return (f"{value:.1f}" for value in (found.p50, found.p95, found.p99)) if found.count else ("-", "-", "-")


def _few_lines(figures: LoadFigures) -> list[str]:
    count = figures.num_completed
    return [f"p99 of TTFT and e2e lies between the two slowest of {count} requests"] if 1 < count <= FEW else []


def _client_lines(client: ClientVerdict) -> list[str]:
    figures = (
        f"the client sent {client.send_lag.p99:.1f} ms late (p99), its loop was {client.loop_delay.p99:.1f} ms late "
        f"(p99), it took {client.cpu_share:.0%} of a core"
    )
    return [figures, *(f"INVALID, the client was the bottleneck: {fault}" for fault in client.faults)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        f"{row[0]:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
