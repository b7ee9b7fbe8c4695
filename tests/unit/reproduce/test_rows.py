"""Every row in its smoke form: it runs, answers claims, and what it did not measure is the same byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stratos.reproduce.catalogue import ROWS, ReproducedRow, find_row
from stratos.reproduce.measuring import measure_row
from stratos.reproduce.record.answer import FigureKind
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import unchanging_part
from stratos.reproduce.rows.calculated.failures import FAILURES, ProvenFailure
from tests.support.paths import ROOT

CPU_ROWS = [row for row in ROWS if not row.needs_gpu and not row.starts_processes]
LONG = ("adapters", "all-on", "kv-concurrency", "open-loop", "peers", "policies")
"""Rows that take seconds even so; others of their kinds do not."""


def marked(row: ReproducedRow) -> Any:
    return pytest.param(row, id=row.name, marks=[pytest.mark.slow] if row.name in LONG else [])


def smoke(row: ReproducedRow, folder: Path) -> dict[str, Any]:
    conditions = RowConditions(form=RowForm.SMOKE, seed=3, model=ROOT / "models" / "base", folder=folder)
    return measure_row(row, conditions)


def has_unmeasured_part(found: dict[str, Any]) -> bool:
    """Whether anything of the row was simulated or calculated."""
    own = [answer["own"] for answer in found["answers"] if answer["own"] is not None]
    return any(part["kind"] != FigureKind.MEASURED for part in (*own, *found["tables"], *found["plots"]))


@pytest.mark.parametrize("row", [marked(row) for row in CPU_ROWS])
def test_a_row_answers_claims_and_names_its_command(row: ReproducedRow, tmp_path: Path) -> None:
    found = smoke(row, tmp_path)
    assert json.loads(json.dumps(found)) == found
    assert found["command"] == f"stratos reproduce {row.name} --smoke --seed 3"
    assert found["tables"]
    assert [one["claim"] for one in found["answers"] if not re.fullmatch(r"\d\.\d+", one["claim"])] == []
    assert not re.search(r"todo|sketch|case study", json.dumps(found), re.IGNORECASE)
    if has_unmeasured_part(found):
        assert unchanging_part(smoke(row, tmp_path)) == unchanging_part(found)


def test_rows_have_names_of_their_own_and_are_found_by_them() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert find_row("block-table").module == "cache.block_table"


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.failure)
def test_the_table_of_failures_names_tests_that_exist(failure: ProvenFailure) -> None:
    file, _, name = failure.test.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
