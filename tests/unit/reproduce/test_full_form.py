"""The full form of all rows takes ninety minutes at most: bounds by row, and loads that are priced beside them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.reproduce.running import STOP_S, WHOLE_S, WholeReport
from stratos.reproduce.catalogue import ROWS, find_row
from stratos.reproduce.record.conditions import RowConditions, RowForm
from tests.support.paths import ROOT
from tests.support.priced_model import TOKEN_BYTES, priced_models

MOST_MINUTES = 90
QUICK = ("kv-cache", "contiguous-cache", "batch-sweep", "prefix-sharing", "chunked-prefill")
LONG = ("batch-grid", "continuous-batching", "open-loop", "all-on")
"""Rows whose loads take seconds and minutes to price."""


def test_the_bounds_of_all_rows_are_ninety_minutes_at_most() -> None:
    assert sum(row.full_minutes for row in ROWS) <= MOST_MINUTES
    assert min(row.full_minutes for row in ROWS) > 0


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_the_loads_of_a_row_take_less_than_its_bound(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    row = find_row(name)
    module = import_module(f"stratos.reproduce.rows.{row.module}")
    taken = priced_models(module, monkeypatch)
    if name == "all-on":
        monkeypatch.setattr(module, "token_bytes_of", lambda _: TOKEN_BYTES)
        monkeypatch.setattr(module, "_copy_bytes_per_s", lambda: 1e10)
    module.measure(RowConditions(form=RowForm.FULL, folder=tmp_path))
    assert 0 < sum(model.seconds for model in taken) < 60 * row.full_minutes


def test_a_row_of_a_whole_report_is_stopped_at_its_bound_in_the_full_form_alone(tmp_path: Path, capfd: Any) -> None:
    row, measure = replace(find_row("queueing"), full_minutes=0.001), WholeReport()
    conditions = RowConditions(form=RowForm.SMOKE, model=ROOT / "models" / "base", folder=tmp_path)
    document = measure(row, conditions)
    assert document is not None
    assert document["bound_minutes"] is None
    assert measure(row, replace(conditions, form=RowForm.FULL)) is None
    assert "stopped after 0.06 s, its bound" in capfd.readouterr().err


def test_no_row_begins_after_the_time_of_one_call(tmp_path: Path, capfd: Any) -> None:
    clock = iter((0.0, WHOLE_S - STOP_S))
    measure = WholeReport(now=lambda: next(clock))
    conditions = RowConditions(form=RowForm.FULL, model=ROOT / "models" / "base", folder=tmp_path)
    assert measure(find_row("block-table"), conditions) is None
    assert "the same command goes on here" in capfd.readouterr().err
    assert WHOLE_S <= 60 * MOST_MINUTES
