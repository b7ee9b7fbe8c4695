"""The group of commands ``stratos plan``, which is imported when it is asked for: other commands start without it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command


class CalculatorGroup(TyperGroup):
    @cached_property
    def _loaded(self) -> Any:
        from stratos.cli.commands.plan.app import plan_app

        return get_command(plan_app)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the help."""
        names: list[str] = self._loaded.list_commands(ctx)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or ``None``."""
        return self._loaded.get_command(ctx, cmd_name)


plan_group = typer.Typer(
    cls=CalculatorGroup, help="Memory, speed and money from formulas, without running anything.", no_args_is_help=True
)
