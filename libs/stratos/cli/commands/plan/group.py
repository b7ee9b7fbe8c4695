"""The group of commands ``stratos plan``, which is imported when it is asked for: other commands start without it."""

from __future__ import annotations

import typer

from stratos.cli.commands.on_demand import on_demand


def _load() -> typer.Typer:
    from stratos.cli.commands.plan.app import plan_app

    return plan_app


plan_group = typer.Typer(
    cls=on_demand(_load), help="Memory, speed and money from formulas, without running anything.", no_args_is_help=True
)
