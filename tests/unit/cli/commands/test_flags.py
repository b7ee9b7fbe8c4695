"""Flags that are fields of a record reach it, with its defaults and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Wash:
    machine: str
    degrees: Annotated[int, typer.Option("--at", help="Temperature.")] = 40
    colours: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None

    def __post_init__(self) -> None:
        if self.degrees > 90:
            raise BadRequest("--at must be at most 90", param="--at")


@app.command()
@with_flags_of(Wash)
def wash(
    *,
    first: Annotated[bool, typer.Option("--first")] = False,
    make: Callable[..., Wash],
    last: Annotated[int, typer.Option()] = 3,
) -> None:
    """Wash once."""
    with explained_errors():
        typer.echo(f"{first} {last} {make(machine='m')}")


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100"}).output


def test_flags_stand_in_the_help_where_the_record_stands() -> None:
    text = run("--help")
    assert "Wash once." in text
    places = [text.index(flag) for flag in ("--first", "--at", "--colours", "--last")]
    assert places == sorted(places)
    assert "machine" not in text


def test_what_is_not_given_is_the_default_of_the_record() -> None:
    assert run() == f"False 3 {Wash(machine='m')}\n"


def test_flags_reach_the_record() -> None:
    given = run("--first", "--at", "60", "--colours", "red", "--colours", "blue", "--last", "4")
    assert given == f"True 4 {Wash(machine='m', degrees=60, colours=['red', 'blue'])}\n"


def test_a_refusal_of_the_record_is_one_line() -> None:
    assert run("--at", "95") == "error: --at must be at most 90\n"
