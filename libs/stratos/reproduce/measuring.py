"""One row to its document: conditions, environment and load beside what the row found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from stratos.reproduce.catalogue import ReproducedRow
from stratos.reproduce.gpu_checks import GpuCheck, run_check
from stratos.reproduce.machine import LoadWatch, read_environment
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import RowResult


def measure_row(row: ReproducedRow, conditions: RowConditions) -> dict[str, Any]:
    """Run a row here and now.

    Returns:
        The row's document: names, conditions, environment, ``run`` (durations, load by others), and the content of
        ``RowResult.as_json``.
    """
    if row.needs_gpu:
        return gpu_document(row, run_check(row.sections))
    environment, watch, began_s = read_environment(), LoadWatch(), time.perf_counter()
    result: RowResult = _module(row).measure(conditions)
    duration_s = time.perf_counter() - began_s
    run = {"duration_s": round(duration_s, 1), **watch.as_json()}
    return _document(row, conditions, environment, run, result)


def gpu_document(row: ReproducedRow, check: GpuCheck) -> dict[str, Any]:
    """The document of a row of a GPU, in the same form, from a report that was made here or elsewhere."""
    result: RowResult = _module(row).read(check)
    run = {"duration_s": check.duration_s(row.sections), "cpu_s": 0.0, "foreign_share": 0.0, "loaded": False}
    return _document(row, RowConditions(), check.where(), run, result)


def _module(row: ReproducedRow) -> ModuleType:
    return import_module(f"stratos.reproduce.rows.{row.module}")


def _document(
    row: ReproducedRow,
    conditions: RowConditions,
    environment: Mapping[str, Any],
    run: Mapping[str, Any],
    result: RowResult,
) -> dict[str, Any]:
    return {
        "name": row.name,
        "title": row.title,
        "form": str(conditions.form),
        "bound_minutes": row.full_minutes if conditions.form is RowForm.FULL else None,
        "seed": conditions.seed,
        "threads": conditions.threads,
        "command": command_of(row, conditions),
        "environment": environment,
        "run": run,
        **result.as_json(),
    }


def command_of(row: ReproducedRow, conditions: RowConditions) -> str:
    """The command that measures this row alone."""
    form = "" if conditions.form is RowForm.SHORT else f" --{conditions.form}"
    seed = f" --seed {conditions.seed}" if conditions.seed else ""
    return f"stratos reproduce {row.name}{' --gpu' * row.needs_gpu}{form}{seed}"
