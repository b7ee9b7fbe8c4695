"""A closed loop of equal requests through HTTP, as the benchmarks that compare servers send it."""

from __future__ import annotations

from typing import Any

import uvloop

from stratos.cli.load.harness import LoadMeasurement, check_answered, measure_load
from stratos.cli.load.options import LoadOptions
from stratos.common.errors import DependencyDown


def closed_load(url: str, key: str, streams: int, **options: Any) -> LoadMeasurement:
    """Send the load; every request must be answered.

    Args:
        url: server with ``/v1``.
        key: API key.
        streams: at once.
        options: fields of ``LoadOptions``.
    """
    found = check_answered(uvloop.run(measure_load(LoadOptions(key=key, **options), url, f"closed:{streams}")), url)
    if found.report.refusals:
        raise DependencyDown(f"{url} refused requests: {dict(found.report.refusals)}")
    return found


def closed_row(found: LoadMeasurement, streams: int) -> dict[str, Any]:
    """A row of a table."""
    figures = found.report.all
    return {
        "concurrency": streams,
        "num_requests": figures.num_completed,
        "wall_s": round(figures.duration_s, 3),
        "output_tokens_per_s": round(figures.output_tokens_per_s, 3),
        "ttft_p50_ms": round(figures.ttft.p50, 3),
        "ttft_max_ms": round(figures.ttft.most, 3),
        "itl_mean_ms": round(figures.tpot.mean, 3),
    }
