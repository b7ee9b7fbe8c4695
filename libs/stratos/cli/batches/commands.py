"""``stratos batch submit | status | fetch | cancel``, and ``run``, which needs no platform."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratos.cli.batches.offline import RunCommand, run
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest

if TYPE_CHECKING:
    from stratos.cli.batches.client import BatchClient

batch_app = typer.Typer(help="Files of requests that a platform computes when it has room.", no_args_is_help=True)
batch_app.command(cls=RunCommand)(run)
UrlOption = Annotated[
    str, typer.Option(envvar="OPENAI_BASE_URL", help="Gateway with /v1; default: the running platform.")
]
KeyOption = Annotated[
    str, typer.Option(envvar="OPENAI_API_KEY", help="Key of the tenant; default: the running platform's.")
]
BatchArgument = Annotated[str, typer.Argument(help="Id of the batch.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def _client(url: str, key: str, data_dir: Path, run: str) -> Iterator[BatchClient]:
    """A client of a gateway, whose errors end the command."""
    from stratos.cli.batches.client import BatchClient
    from stratos.cli.local.running import find_platform

    with explained_errors():
        facts = None if url and key else find_platform(data_dir, run)
        base_url = url or ("" if facts is None else facts.base_url)
        with BatchClient(base_url, key or ("" if facts is None else facts.api_key)) as client:
            yield client


@batch_app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="One request a line, as JSON.")],
    metadata: Annotated[list[str] | None, typer.Option(help="NAME=TEXT, kept with the batch.")] = None,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Upload a file and begin a batch of it; prints its id."""
    with _client(url, key, data_dir, run) as client:
        pairs = dict(pair.partition("=")[::2] for pair in metadata or ())
        typer.echo(client.submit(file, pairs)["id"])


@batch_app.command()
def status(
    batch: BatchArgument,
    wait: Annotated[bool, typer.Option(help="Show progress until it has ended.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how far a batch is."""
    from stratos.cli.batches.client import ENDED, progress_text

    with _client(url, key, data_dir, run) as client:
        found = client.show(batch)
        while wait and found["status"] not in ENDED:
            typer.echo(f"\r{progress_text(found)}", nl=False)
            time.sleep(1.0)
            found = client.show(batch)
        begin = "\r" if wait else ""
        typer.echo(json.dumps(found, indent=2) if as_json else begin + progress_text(found))


@batch_app.command()
def fetch(
    batch: BatchArgument,
    out: Annotated[Path, typer.Option(help="File for the answers; errors go beside it, as NAME.errors.")],
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Download the results of a batch that has ended."""
    with _client(url, key, data_dir, run) as client:
        found = client.show(batch)
        files = {out: found["output_file_id"], out.with_name(f"{out.name}.errors"): found["error_file_id"]}
        if not any(files.values()):
            raise BadRequest(f"the batch has no results: it is {found['status']}")
        for path, file_id in files.items():
            if file_id is not None:
                typer.echo(f"{path}: {client.fetch(file_id, path)} bytes")
            else:
                path.unlink(missing_ok=True)  # of another batch: it would pass for a part of this one


@batch_app.command()
def cancel(
    batch: BatchArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """End a batch; what was answered is kept."""
    with _client(url, key, data_dir, run) as client:
        typer.echo(client.cancel(batch)["status"])
