"""All commands of ``stratos plan``."""

from __future__ import annotations

import typer

from stratos.cli.commands.plan.memory import kv, memory
from stratos.cli.commands.plan.money import breakeven, claims, cost, fleet, lora, tier
from stratos.cli.commands.plan.speed import batch, gpu, replicas

plan_app = typer.Typer()
for command in (kv, memory, batch, gpu, replicas, cost, breakeven, lora, tier, fleet, claims):
    plan_app.command()(command)
