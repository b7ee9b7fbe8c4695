"""Figures of reproduced claims in the documents are those of the committed reports, and those were measured alone."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.docs.four_numbers import REPORT, with_numbers
from scripts.docs.reproduced_claims import (
    BEGIN,
    DOCUMENT,
    END,
    NONE,
    README,
    made_documents,
    reports,
    with_claims,
)
from stratos.cli.reproduce.cells import is_measured
from stratos.reproduce.catalogue import ROWS
from stratos.reproduce.measuring import measure_row
from stratos.reproduce.record.conditions import RowConditions, RowForm

CLAIMS = {0: 11, 1: 13, 2: 4, 3: 18, 4: 16}
"""Published claims have ids from ``0.1`` to ``4.16``: how many there are of each publication."""
MARKED = f"before\n{BEGIN}\n\nold\n\n{END}\nafter"


@pytest.mark.parametrize("path", [DOCUMENT, README], ids=lambda path: path.name)
def test_a_document_has_the_figures_of_the_committed_reports(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert made_documents()[path] == text, "run python -m scripts.docs.reproduced_claims"


def test_the_readme_changes_with_the_report() -> None:
    text, rows = README.read_text(encoding="utf-8"), copy.deepcopy(reports()[REPORT])
    assert with_numbers(text, rows) == text
    table = rows["all-on"]["tables"][0]
    table["rows"][-1][table["columns"].index("tokens_per_s")] *= 2
    assert with_numbers(text, rows) != text


@pytest.mark.parametrize("name", reports() or [pytest.param("", marks=pytest.mark.skip(reason="no report yet"))])
def test_a_committed_report_is_whole_and_was_measured_on_a_machine_of_its_own(name: str) -> None:
    known = {row.name: row for row in ROWS if not row.needs_gpu}
    rows = {row: found for row, found in reports()[name].items() if row in known}
    elsewhere = {row for other, found in reports().items() if other != name for row in found}
    assert set(known) - set(rows) <= elsewhere, "a row that is younger than a report is in that of another machine"
    assert {row["form"] for row in rows.values()} <= {"short", "full"}
    loaded = {row["name"] for row in rows.values() if row["run"]["loaded"] and is_measured(row)}
    assert [row for row in loaded if not known[row].is_paired] == []
    assert [row["name"] for row in rows.values() if not row["environment"]["commit"]] == []


def test_every_published_claim_has_a_row_of_the_report(tmp_path: Path) -> None:
    conditions = RowConditions(form=RowForm.SMOKE, folder=tmp_path)
    documents = [*reports()[REPORT].values()]
    documents += [measure_row(row, conditions) for row in ROWS if row.module.startswith("calculated.")]
    answered = {answer["claim"] for found in documents for answer in found["answers"]}
    for table in (table for found in documents for table in found["tables"] if "claim" in table["columns"]):
        answered |= {row[table["columns"].index("claim")] for row in table["rows"]}
    claims = {f"{publication}.{number}" for publication, count in CLAIMS.items() for number in range(1, count + 1)}
    assert answered == claims


def test_what_stands_between_the_marks_is_made_from_the_report(tmp_path: Path) -> None:
    own = {"name": "gain", "value": 3.5, "kind": "simulated", "how": "16 batches"}
    answer: dict[str, Any] = {"claim": "3.6", "claimed": "4.7 x", "own": own, "verdict": "simulated below"}
    where = {"environment": {"cpu": "a cpu"}}
    rows = {"continuous-batching": {"answers": [answer], **where}, "failures": {"answers": [], **where}}
    (tmp_path / "reproduce-here.json").write_text(json.dumps({"rows": rows}))
    text = with_claims(MARKED, reports(tmp_path))
    assert "| continuous-batching | 3.6 | 4.7 x | 3.5 (gain, simulated; 16 batches) | simulated below |" in text
    assert (text.startswith("before\n"), text.endswith("\nafter"), "old" in text) == (True, True, False)
    assert NONE in with_claims(MARKED, {})
