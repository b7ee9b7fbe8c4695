"""Options that several calculators have, and how a sheet is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from stratos.calculators.models.known import find_shape
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.sheet import Sheet, sheet_text
from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest

ModelOption = Annotated[str, typer.Option("--model", help="Known name, config.json, or a folder that has one.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="FIELD=VALUE of config.json, changed or given; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write tables and their plots into this page, too.")]
DeviceOption = Annotated[str, typer.Option("--device", help="l4, a10, rtx-4090, l40s, a100-40, a100-80, h100 or h200.")]


def shape_of(model: str, changes: list[str] | None) -> ModelShape:
    """The shape of what ``--model`` and ``--set`` name."""
    return find_shape(model, changes or ())


def named_numbers(flag: str, text: str, count: int) -> tuple[str, list[float]]:
    """Parts of ``NAME=NUMBER:NUMBER``.

    Raises:
        BadRequest: it is not of that form, or has another count of numbers.
    """
    name, _, numbers = text.partition("=")
    parts = numbers.split(":")
    if not name or len(parts) != count:
        raise BadRequest(f"{flag} {text}: it must be NAME={':'.join(['NUMBER'] * count)}", param=flag)
    return name, [number(flag, part) for part in parts]


def number(flag: str, text: str) -> float:
    """Raises ``BadRequest`` for a text that is no number."""
    try:
        return float(text)
    except ValueError as error:
        raise BadRequest(f"{flag}: {text!r} is not a number", param=flag) from error


def show(calculate: Callable[[], Sheet], as_json: bool, html: Path | None = None) -> None:
    """Print the sheet, or the refusal, and write the page that was asked for."""
    with explained_errors():
        sheet = calculate()
        if html is not None:
            _write_page(sheet, html)
    typer.echo(json.dumps(sheet.as_json(), indent=2) if as_json else sheet_text(sheet))


def _write_page(sheet: Sheet, path: Path) -> None:
    """Raises ``BadRequest`` for a path that cannot be written."""
    from stratos.cli.commands.plan.page import sheet_page

    try:
        path.write_text(sheet_page(sheet), encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"--html {path}: it cannot be written: {error.strerror}", param="--html") from error
