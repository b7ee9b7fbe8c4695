"""Options that several calculators have, and how a sheet is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

from stratos.calculators.models.known import find_shape
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.sheet import Sheet, sheet_text
from stratos.cli.commands.shared import explained_errors

ModelOption = Annotated[str, typer.Option("--model", help="Known name, config.json, or a folder that has one.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="FIELD=VALUE of config.json, changed or given; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceOption = Annotated[str, typer.Option("--device", help="l4, a10, rtx-4090, l40s, a100-40, a100-80, h100 or h200.")]


def shape_of(model: str, changes: list[str] | None) -> ModelShape:
    """The shape of what ``--model`` and ``--set`` name."""
    return find_shape(model, changes or ())


def show(calculate: Callable[[], Sheet], as_json: bool) -> None:
    """Print the sheet, or the refusal."""
    with explained_errors():
        sheet = calculate()
    typer.echo(json.dumps(sheet.as_json(), indent=2) if as_json else sheet_text(sheet))
