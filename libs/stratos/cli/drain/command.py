"""The command: its flags, and what it prints."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Annotated

import typer

from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption


def drain(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as `stratos status` shows it.")],
    wait: Annotated[float, typer.Option(help="Longest wait for its end, in seconds.")] = 60.0,
    last: Annotated[bool, typer.Option("--last", help="Also the last decode worker of its model.")] = False,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a worker leave: others take its streams with their KV. Exit code 1 if it has not left in time."""
    from stratos.cli.drain.worker import drain_worker, outcome_text
    from stratos.cli.local.running import find_platform

    with explained_errors():
        outcome = asyncio.run(drain_worker(find_platform(data_dir, run), worker, wait_s=wait, is_last_too=last))
    typer.echo(json.dumps(dataclasses.asdict(outcome), indent=2) if as_json else outcome_text(outcome))
    raise typer.Exit(0 if outcome.has_left else 1)
