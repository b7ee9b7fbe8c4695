"""One row to its document: conditions, environment and load beside what the row found."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from stratos.reproduce.catalogue import ReproducedRow
from stratos.reproduce.machine import LoadWatch, read_environment
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import RowResult


def measure_row(row: ReproducedRow, conditions: RowConditions) -> dict[str, Any]:
    """Run a row here and now.

    Returns:
        The row's document: names, conditions, environment, ``run`` (durations, load by others), and the content of
        ``RowResult.as_json``.
    """
    environment, watch, began_s = read_environment(), LoadWatch(), time.perf_counter()
    result: RowResult = import_module(f"stratos.reproduce.rows.{row.module}").measure(conditions)
    duration_s = time.perf_counter() - began_s
    return {
        "name": row.name,
        "title": row.title,
        "form": str(conditions.form),
        "seed": conditions.seed,
        "threads": conditions.threads,
        "command": command_of(row, conditions),
        "environment": environment,
        "run": {"duration_s": round(duration_s, 1), **watch.as_json()},
        **result.as_json(),
    }


def command_of(row: ReproducedRow, conditions: RowConditions) -> str:
    """The command that measures this row alone."""
    form = "" if conditions.form is RowForm.SHORT else f" --{conditions.form}"
    seed = f" --seed {conditions.seed}" if conditions.seed else ""
    return f"stratos reproduce {row.name}{form}{seed}"
