"""``stratos bench``: load on a running platform, or on any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.load.options import LoadOptions
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption

if TYPE_CHECKING:
    from stratos.cli.load.harness import LoadMeasurement

DEFAULT_ARRIVALS = ("closed:1", "closed:8", "closed:32")
INVALID_EXIT_CODE = 3
"""The client was the bottleneck: the figures are printed, and say nothing about the server."""


@with_flags_of(LoadOptions)
def bench(
    *,
    arrivals: Annotated[
        list[str] | None,
        typer.Option(
            help="closed:STREAMS, poisson:RATE, gamma:RATE,CV, burst:SIZE,PERIOD_S or trace:FILE; may be repeated. "
            "Default: closed loops of 1, 8 and 32."
        ),
    ] = None,
    url: Annotated[str, typer.Option(help="Server with /v1; default: the running platform.")] = "",
    key: Annotated[str, typer.Option(help="API key.")] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model or adapter, NAME or NAME=WEIGHT; may be repeated. Default: the running platform's."),
    ] = None,
    make: Callable[..., LoadOptions],
    out: Annotated[Path | None, typer.Option(help="JSON file of the results, with every request.")] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send a load and print rates, TTFT, ITL, goodput and refusals; latency counts from the intended arrival."""
    from stratos.cli.load.report.table import reports_text
    from stratos.cli.local.running import find_platform
    from stratos.common.errors import BadRequest

    with explained_errors():
        if not url:
            facts = find_platform(data_dir, run)
            url, key, model = facts.base_url, key or facts.api_key, model or [facts.model]
        if not model:
            raise BadRequest("--url needs --model", param="--model")
        options = make(key=key or "none", models=tuple(model))
        found = [asyncio.run(_measure(options, url, one)) for one in arrivals or DEFAULT_ARRIVALS]
        if out is not None:
            _write(out, [one.as_json(has_details=True) for one in found])
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
    else:
        typer.echo(reports_text([(one.arrivals, one.report) for one in found]))
    if not all(one.report.client.is_valid for one in found):
        raise typer.Exit(INVALID_EXIT_CODE)


async def _measure(options: LoadOptions, url: str, arrivals: str) -> LoadMeasurement:
    from stratos.cli.load.harness import measure_load
    from stratos.cli.load.progress import shown_progress

    async with shown_progress(arrivals) as progress:
        return await measure_load(options, url, arrivals, progress)


def _write(path: Path, content: Any) -> None:
    from stratos.cli.money.ledger_files import write_file

    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
