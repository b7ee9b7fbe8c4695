"""Commands are made when they are asked for, and are those that typer would have made at once."""

from __future__ import annotations

import typer
from typer.main import get_command
from typer.testing import CliRunner

from stratos.cli.commands.on_demand import on_demand


class Commands:
    """A command, a group with one, and a group without a name; tells which group was loaded."""

    def __init__(self) -> None:
        self.loads = 0
        self.inner, self.nameless = typer.Typer(help="Inner."), typer.Typer()
        self.inner.command()(self.deep)
        self.nameless.command()(self.beside)
        self.all = typer.Typer()
        self.all.command()(self.first)
        self.all.add_typer(self.inner, name="inner")
        self.all.add_typer(self.nameless)

    def load(self) -> typer.Typer:
        self.loads += 1
        return self.all

    def deep(self, number: int = 1) -> None:
        typer.echo(f"deep {number}")

    def beside(self) -> None:
        typer.echo("beside")

    def first(self) -> None:
        typer.echo("first")


def application(commands: Commands) -> typer.Typer:
    app = typer.Typer(cls=on_demand(commands.load))
    app.callback()(lambda: None)
    return app


def test_nothing_is_loaded_before_a_command_is_asked_for() -> None:
    commands = Commands()
    group = get_command(application(commands))
    assert commands.loads == 0
    made = vars(group)["commands"]
    assert made["inner"] is made["inner"], "each is made once"
    assert commands.loads == 1


def test_they_run_and_are_listed_as_those_of_typer_itself() -> None:
    commands = Commands()
    asked = (["first"], ["inner", "deep", "--number", "3"], ["beside"], ["--help"], ["inner", "--help"], ["inne"], [])
    ours, typers = (
        [CliRunner().invoke(app, arguments) for arguments in asked] for app in (application(commands), commands.all)
    )
    assert [(done.exit_code, done.output) for done in ours] == [(done.exit_code, done.output) for done in typers]
    assert [done.output for done in ours[:3]] == ["first\n", "deep 3\n", "beside\n"]
    assert "Did you mean 'inner'" in ours[5].output
