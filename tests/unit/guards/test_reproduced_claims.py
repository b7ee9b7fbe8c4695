"""Figures of reproduced claims in the documents are those of the committed reports, and those were measured alone."""

from __future__ import annotations

import copy
import json
import re
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
    take,
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


def taken_row(name: str, **changes: Any) -> dict[str, Any]:
    where = {"cpu": "AMD EPYC", "cores": 2, "commit": changes.pop("commit", "abc")}
    found = {"name": name, "form": "full", "environment": where, "run": {"loaded": False}, "answers": [], "plots": [],
             "tables": [{"kind": "measured"}]}  # fmt: skip
    return found | changes


def test_a_report_is_taken_into_the_file_of_its_form_and_machine(tmp_path: Path) -> None:
    report, committed = tmp_path / "reproduce.json", tmp_path / "results"
    committed.mkdir()
    for rows in (["kv-cache", "all-on"], ["all-on", "sampling"]):
        report.write_text(json.dumps({"rows": {name: taken_row(name, title=str(rows)) for name in rows}}))
        [path] = take(report, committed)
    assert re.fullmatch(r"reproduce-full-epyc-\w+-2core-cpu\.json", path.name)
    rows = reports(committed)[path.name]
    assert list(rows) == ["kv-cache", "all-on", "sampling"]
    assert rows["all-on"]["title"] == "['all-on', 'sampling']", "the newest one"


@pytest.mark.parametrize("changes", [{"commit": "abc+"}, {"commit": ""}, {"run": {"loaded": True}}], ids=str)
def test_rows_that_may_not_be_committed_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    report = tmp_path / "reproduce.json"
    report.write_text(
        json.dumps({"rows": {"kv-cache": taken_row("kv-cache"), "all-on": taken_row("all-on", **changes)}})
    )
    with pytest.raises(SystemExit, match=r": all-on$"):
        take(report, tmp_path)
    assert list(tmp_path.iterdir()) == [report]
