"""``stratos bench``: load on a running platform, or on any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.load.options import LoadOptions
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.cli.load.harness import LoadMeasurement
    from stratos.cli.load.search.modes import SearchAsk, SearchResult

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
    find: Annotated[
        str, typer.Option(help="capacity (requests/s) or batch (streams): search what keeps --slo, or the knee.")
    ] = "",
    least: Annotated[float, typer.Option(help="With --find: the load to begin with.")] = 1.0,
    most: Annotated[float, typer.Option(help="With --find: the highest load to try.")] = 1024.0,
    kept_share: Annotated[float, typer.Option(help="With --find: share of the requests that must keep --slo.")] = 0.99,
    url: Annotated[str, typer.Option(help="Server with /v1; default: the running platform.")] = "",
    key: Annotated[str, typer.Option(help="API key.")] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model or adapter, NAME or NAME=WEIGHT; may be repeated. Default: the running platform's."),
    ] = None,
    make: Callable[..., LoadOptions],
    out: Annotated[Path | None, typer.Option(help="JSON file of the results, with every request.")] = None,
    html: Annotated[Path | None, typer.Option(help="Page with plots, which needs no network.")] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send a load and print rates, TTFT, ITL, goodput and refusals; latency counts from the intended arrival."""
    import uvloop  # half the processor time for an event, which the server may need

    from stratos.cli.local.running import find_platform

    with explained_errors():
        if find and arrivals:
            raise BadRequest("--find chooses the arrivals by itself: leave --arrivals out", param="--arrivals")
        if not url:
            facts = find_platform(data_dir, run)
            url, key, model = facts.base_url, key or facts.api_key, model or [facts.model]
        if not model:
            raise BadRequest("--url needs --model", param="--model")
        options = make(key=key or "none", models=tuple(model))
        if find:
            ask = _search_ask(find, least=least, most=most, share=kept_share, has_promise=bool(options.slo))
            searched = uvloop.run(_search(options, url, ask))
            _write_files(searched.runs, searched.as_json(), out, html, title=searched.sentence())
            _show_search(searched, as_json=as_json)
        else:
            found = [uvloop.run(_answered(options, url, one)) for one in arrivals or DEFAULT_ARRIVALS]
            content = [one.as_json(has_details=True) for one in found]
            _write_files(found, content, out, html)
            _show_runs(found, as_json=as_json)


def _search_ask(find: str, **ask: Any) -> SearchAsk:
    from stratos.cli.load.search.modes import SearchAsk, SearchMode

    if find not in set(SearchMode):
        raise BadRequest(f"--find must be {' or '.join(SearchMode)}, not {find!r}", param="--find")
    return SearchAsk(mode=SearchMode(find), **ask)


async def _answered(options: LoadOptions, url: str, arrivals: str) -> LoadMeasurement:
    from stratos.cli.load.harness import check_answered

    return check_answered(await _measure(options, url, arrivals), url)


async def _measure(options: LoadOptions, url: str, arrivals: str) -> LoadMeasurement:
    from stratos.cli.load.harness import measure_load
    from stratos.cli.load.progress import shown_progress

    async with shown_progress(arrivals) as progress:
        return await measure_load(options, url, arrivals, progress)


async def _search(options: LoadOptions, url: str, ask: SearchAsk) -> SearchResult:
    from stratos.cli.load.harness import check_answered
    from stratos.cli.load.search.modes import SEARCH_RUN_S, SearchMode, search

    if ask.mode is SearchMode.CAPACITY and not options.requests and not options.duration:
        options = replace(options, duration=SEARCH_RUN_S)
    found = await search(ask, lambda arrivals: _measure(options, url, arrivals))
    check_answered(found.runs[0], url)
    return found


def _show_runs(found: Sequence[LoadMeasurement], *, as_json: bool) -> None:
    from stratos.cli.load.report.table import reports_text

    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
    else:
        typer.echo(reports_text([(one.arrivals, one.report) for one in found]))
    if not all(one.report.client.is_valid for one in found):
        raise typer.Exit(INVALID_EXIT_CODE)


def _show_search(found: SearchResult, *, as_json: bool) -> None:
    from stratos.cli.load.report.table import reports_text

    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        typer.echo(reports_text([(one.arrivals, one.report) for one in found.runs]))
        typer.echo(found.sentence())
    if found.is_client_limit:
        raise typer.Exit(INVALID_EXIT_CODE)


def _write_files(
    runs: Sequence[LoadMeasurement], content: Any, out: Path | None, html: Path | None, title: str = ""
) -> None:
    """Write the files that were asked for; ``title`` is what a search found."""
    from stratos.cli.load.plots.page import load_page
    from stratos.cli.money.ledger_files import write_file

    if out is not None:
        write_file(out, (json.dumps(content, indent=1) + "\n").encode())
    if html is not None:
        page = load_page(runs, title or ", ".join(run.arrivals for run in runs), is_search=bool(title))
        write_file(html, page.encode())
