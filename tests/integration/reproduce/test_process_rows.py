"""Rows that start our services, in their smoke form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratos.reproduce.catalogue import ROWS, ReproducedRow
from stratos.reproduce.measuring import measure_row
from stratos.reproduce.record.conditions import RowConditions, RowForm
from tests.support.paths import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.starts_processes], ids=lambda row: row.name)
def test_a_row_of_processes_measures_and_names_its_command(row: ReproducedRow, tmp_path: Path) -> None:
    found = measure_row(row, RowConditions(form=RowForm.SMOKE, model=ROOT / "models" / "base", folder=tmp_path))
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == f"stratos reproduce {row.name} --smoke"
    assert [len(table["rows"]) for table in found["tables"]] == [1]
