"""``stratos trace``: files that say when requests come and how long they are; ``stratos bench`` replays them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.admin_access import KeyOption, UrlOption, admin_client
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption

trace_app = typer.Typer(help="Traces of requests: make, export and check them.", no_args_is_help=True)
FileArgument = Annotated[Path, typer.Argument(help="File to write, one request a line.")]
DayOption = Annotated[str, typer.Option(help="UTC day, such as 2026-11-23; default: today.")]


@trace_app.command("generate")
def generate(
    shape: Annotated[str, typer.Argument(help="Published shape; `stratos trace shapes` lists them.")],
    path: FileArgument,
    requests: Annotated[int, typer.Option(min=1, help="Lines of the file.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same one gives the same file.")] = 0,
) -> None:
    """Write a trace with the lengths, arrivals and shared prefixes of a published one."""
    from stratos.cli.load.traces.mooncake import write_rows
    from stratos.cli.load.traces.shapes import shaped_rows

    with explained_errors():
        count = write_rows(path, shaped_rows(shape, requests, seed))
    typer.echo(f"{count} requests are in {path}")


@trace_app.command("shapes")
def shapes() -> None:
    """List the shapes and where their numbers come from."""
    from stratos.cli.load.traces.shapes import SOURCES

    width = max(map(len, SOURCES))
    for name, source in SOURCES.items():
        typer.echo(f"{name:<{width}}  {source}")


@trace_app.command("check")
def check(path: Annotated[Path, typer.Argument(help="Trace to read.")]) -> None:
    """Read a trace line by line and say how long it is; the first wrong line ends it."""
    from stratos.cli.load.traces.mooncake import trace_extent

    with explained_errors():
        found = trace_extent(path)
    typer.echo(f"{found.num_requests} requests in {found.duration_s:.1f} s")


@trace_app.command("export")
def export(
    path: FileArgument,
    first: DayOption = "",
    last: DayOption = "",
    tenant: Annotated[list[str] | None, typer.Option(help="Whose requests; may be repeated. Default: all.")] = None,
    names: Annotated[bool, typer.Option("--names", help="Keep names of tenants and models.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Write the requests of a running platform as a trace, from its ledger: no text, and pseudonyms for tenants."""
    from stratos.cli.load.traces.export import ExportNames, LedgerTrace
    from stratos.cli.load.traces.mooncake import write_rows
    from stratos.cli.money.ledger_traces import days_from, exported_rows

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        today = str(datetime.now(UTC).date())
        days = days_from(first or today, last or first or today)
        trace = LedgerTrace(ExportNames(salt=secrets.token_bytes(32), keeps_names=names))
        count = write_rows(path, exported_rows(client, days, tenant, trace))
    shared = f"shared blocks of {count - trace.num_guessed} are exact, of {trace.num_guessed} guessed"
    typer.echo(f"{count} requests are in {path}; {shared}")
