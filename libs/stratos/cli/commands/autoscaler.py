"""``stratos autoscaler``: the autoscaler of a running platform, or one at a given address."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption

autoscaler_app = typer.Typer(help="How many workers there are, and why.", no_args_is_help=True)


@autoscaler_app.command("explain")
def explain(
    address: Annotated[
        str,
        typer.Option(
            "--address", envvar="STRATOS_AUTOSCALER", help="host:port; default: that of the running platform."
        ),
    ] = "",
    tls_folder: Annotated[
        Path | None,
        typer.Option(envvar="STRATOS_TLS_FOLDER", help="With --address: the administrator's certificate."),
    ] = None,
    domain: Annotated[
        str, typer.Option(envvar="STRATOS_TLS_DOMAIN", help="With --tls-folder: name of the platform.")
    ] = "stratos",
    last: Annotated[int, typer.Option(min=0, help="Most entries; 0: all that are kept.")] = 20,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what was decided, on what, and what stood in the way; the newest last."""
    from stratos.cli.decisions import decisions_json, decisions_text, find_autoscaler, given_autoscaler, read_decisions
    from stratos.cli.local.running import find_platform
    from stratos.pki.local import role_config

    with explained_errors():
        if address:
            target = given_autoscaler(address, None if tls_folder is None else role_config(tls_folder, domain))
        else:
            target = asyncio.run(find_autoscaler(find_platform(data_dir, run)))
        answer = asyncio.run(read_decisions(target, last))
    now = datetime.datetime.now().astimezone()
    typer.echo(json.dumps(decisions_json(answer, now), indent=2) if as_json else decisions_text(answer, now))
