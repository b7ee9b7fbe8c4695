"""The group of commands ``stratos plan``."""

from __future__ import annotations

import typer

from stratos.cli.commands.plan.memory import kv, memory
from stratos.cli.commands.plan.money import breakeven, cost, fleet, lora, tier
from stratos.cli.commands.plan.speed import batch, gpu, replicas

plan_app = typer.Typer(
    help="Calculate memory, speed and money from formulas, without running anything.", no_args_is_help=True
)
for command in (kv, memory, batch, gpu, replicas, cost, breakeven, lora, tier, fleet):
    plan_app.command()(command)
