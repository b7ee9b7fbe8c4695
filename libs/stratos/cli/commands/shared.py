"""Options that several commands have, and how an error of ours ends a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from stratos.common.errors import StratosError

RunOption = Annotated[str, typer.Option("--run", help="Which run, if several share the data directory.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Tenant the key or adapter belongs to.")]
WaitOption = Annotated[
    float,
    typer.Option("--wait-s", min=0, help="Seconds to wait for stores, or a port and its key, that are not there yet."),
]


@contextmanager
def explained_errors() -> Iterator[None]:
    """One line and exit code 1 for an error of ours; anything else is a bug and keeps its traceback."""
    try:
        yield
    except StratosError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error
