"""The report: rows that are kept or run again, and pages that need no network."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.cli.reproduce.documents import ReportFile
from stratos.cli.reproduce.html import html_report
from stratos.cli.reproduce.markdown import markdown_report
from stratos.cli.reproduce.report import write_pages
from stratos.cli.reproduce.running import MeasureRow, run_rows
from stratos.common.errors import BadRequest
from stratos.reproduce import machine
from stratos.reproduce.catalogue import ReproducedRow
from stratos.reproduce.machine import has_gpu
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

ROWS = (
    ReproducedRow(name="first", module="first", full_minutes=0.01, title="First & foremost"),
    ReproducedRow(name="second", module="second", full_minutes=1, title="Second"),
    ReproducedRow(name="on-gpu", module="on_gpu", full_minutes=1, sections=("decode",), title="On a GPU"),
)
RESULT = RowResult(
    answers=[
        ClaimAnswer(
            claim=exactly("9.9", "a claim | <b>", 2),
            own=OwnFigure(name="gain", value=3.5, kind=FigureKind.MEASURED, how="two runs"),
        )
    ],
    tables=[ResultTable(title="A table", kind=FigureKind.MEASURED, columns=("a", "b_s"), rows=[("x", 1234567)])],
    plots=[
        ResultPlot(title="A plot", kind=FigureKind.MEASURED, x_label="x", y_label="y", lines={"one": [(1, 2), (2, 3)]})
    ],
    notes=["A note."],
)


class RowMeasurements:
    """Measures rows by counting them."""

    def __init__(self, *, breaks: str = "") -> None:
        self.names: list[str] = []
        self._breaks = breaks

    def __call__(self, row: ReproducedRow, conditions: RowConditions) -> dict[str, Any] | None:
        self.names.append(row.name)
        return None if row.name == self._breaks else document(row.name, conditions)


def document(name: str, conditions: RowConditions, *, loaded: bool = False) -> dict[str, Any]:
    return {
        "name": name, "title": name, "form": str(conditions.form), "seed": conditions.seed,
        "threads": conditions.threads, "command": f"stratos reproduce {name}",
        "environment": {"cpu": "a cpu", "cores": 2, "commit": "abc"},
        "run": {"duration_s": 1.5, "cpu_s": 1.0, "foreign_share": 0.5, "loaded": loaded}, **RESULT.as_json(),
    }  # fmt: skip


def run(report: ReportFile, measure: MeasureRow, *, again: bool = False, **changes: Any) -> tuple[list[str], list[str]]:
    """Rows that broke, and what was said."""
    said: list[str] = []
    commit = changes.pop("commit", "abc")
    of_gpus = changes.pop("of_gpus", {})
    conditions = RowConditions(**changes)
    broken = run_rows(
        ROWS, conditions, report, commit=commit, again=again, of_gpus=of_gpus, measure=measure, say=said.append
    )
    return broken, said


def test_a_report_goes_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "reproduce.json"
    broken, said = run(ReportFile(path), RowMeasurements(breaks="second"))
    assert broken == ["second"]
    assert said[-1] == "on-gpu: not run, it needs a GPU"
    second = RowMeasurements()
    assert run(ReportFile(path), second)[0] == []
    assert second.names == ["second"]
    assert list(ReportFile(path).rows) == ["first", "second"]


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"threads": 4}, {"form": RowForm.FULL}, {"commit": "def"}, {"commit": "abc+"}, {"again": True}],
    ids=str,
)
def test_rows_of_other_conditions_or_of_other_code_are_measured_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "reproduce.json"
    run(ReportFile(path), RowMeasurements())
    again = RowMeasurements()
    run(ReportFile(path), again, **changes)
    assert again.names == ["first", "second"]


def test_a_row_that_others_disturbed_is_measured_again(tmp_path: Path) -> None:
    report, conditions = ReportFile(tmp_path / "reproduce.json"), RowConditions()
    calculated = document("second", conditions, loaded=True) | {"answers": [], "tables": [], "plots": []}
    for found in (document("first", conditions, loaded=True), calculated):
        report.put(found)
    paired = "exposed-handoff"
    report.put(document(paired, conditions, loaded=True))
    assert [report.has(name, conditions, "abc") for name in ("first", "second", paired)] == [False, True, True]


@pytest.mark.parametrize("asked", ["", None])
def test_a_row_of_code_without_a_commit_is_measured_again(tmp_path: Path, asked: str | None) -> None:
    """Outside of a repository nothing tells whether the code is that of the row."""
    report, conditions = ReportFile(tmp_path / "reproduce.json"), RowConditions()
    found = document("first", conditions)
    report.put(found | {"environment": found["environment"] | {"commit": ""}})
    assert not report.has("first", conditions, asked)


def test_a_call_that_is_stopped_in_the_middle_of_a_row_keeps_those_before_and_goes_on_there(tmp_path: Path) -> None:
    path = tmp_path / "reproduce.json"

    def stopped(row: ReproducedRow, conditions: RowConditions) -> dict[str, Any]:
        if row.name == "second":
            raise KeyboardInterrupt
        return document(row.name, conditions)

    with pytest.raises(KeyboardInterrupt):
        run(ReportFile(path), stopped)
    assert list(ReportFile(path).rows) == ["first"]
    later = RowMeasurements()
    assert run(ReportFile(path), later) == ([], ["first: kept", "second: 1.5 s", "on-gpu: not run, it needs a GPU"])
    assert later.names == ["second"]


def test_a_report_of_several_days_keeps_what_other_commits_measured_but_no_changed_code(tmp_path: Path) -> None:
    path = tmp_path / "reproduce.json"
    run(ReportFile(path), RowMeasurements(breaks="second"))
    later = RowMeasurements()
    run(ReportFile(path), later, commit=None)
    assert later.names == ["second"]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["rows"]["first"]["environment"]["commit"] = "abc+"
    path.write_text(json.dumps(content), encoding="utf-8")
    changed = RowMeasurements()
    run(ReportFile(path), changed, commit=None)
    assert changed.names == ["first"]


def test_a_row_of_a_gpu_is_measured_here_or_taken_from_a_committed_report(tmp_path: Path) -> None:
    here = RowMeasurements()
    assert run(ReportFile(tmp_path / "here.json"), here, of_gpus=None)[0] == []
    assert here.names == ["first", "second", "on-gpu"]
    committed = document("on-gpu", RowConditions()) | {"environment": {"gpu": "a GPU", "file": "gpu-a.json"}}
    report, elsewhere = ReportFile(tmp_path / "elsewhere.json"), RowMeasurements()
    said = run(report, elsewhere, of_gpus={"on-gpu": committed})[1]
    assert (elsewhere.names, said[-1]) == (["first", "second"], "on-gpu: of gpu-a.json, measured on one a GPU")
    assert report.rows["on-gpu"] == committed
    later = RowMeasurements()
    run(report, later, of_gpus=None, commit=None)
    assert later.names == ["on-gpu"], "a GPU that is here measures what a committed file had answered"


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reproduce.json"
    for content in ("{", "[]", '{"version": 0}'):
        path.write_text(content)
        with pytest.raises(BadRequest):
            ReportFile(path)


def test_the_page_is_one_file_that_fetches_nothing() -> None:
    page = html_report(ROWS, {"first": document("first", RowConditions())})
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    assert "a claim | &lt;b&gt;" in page
    assert "Not run: it needs a GPU; <code>stratos reproduce on-gpu --gpu</code> runs it." in page
    assert "1,234,567" in page
    ET.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])


def test_markdown_has_verdicts_commands_and_where_figures_come_from() -> None:
    text = markdown_report(ROWS, {"first": document("first", RowConditions(threads=2), loaded=True)})
    assert "| 9.9 | a claim / <b> | 2 |  | 3.5 (gain, measured; two runs) | measured above |" in text
    assert "`stratos reproduce first`: short form, seed 0, 2 threads, 1.5 s on 2 cores of a cpu, commit abc" in text
    assert "others took 50% of the machine" in text
    assert "Not run yet: `stratos reproduce second`." in text
    assert "![A plot](plots/first-0.svg)" in text


def test_a_figure_of_a_gpu_names_it() -> None:
    where = {"gpu": "NVIDIA H100", "driver": "580", "torch": "2.11", "utc": "2026-11-26", "commit": "abc"}
    text = markdown_report(ROWS, {"on-gpu": document("on-gpu", RowConditions()) | {"environment": where}})
    assert "1.5 s on one NVIDIA H100, driver 580, torch 2.11, 2026-11-26, commit abc" in text
    assert "read from" not in text
    committed = document("on-gpu", RowConditions()) | {"environment": where | {"file": "gpu-a.json"}}
    assert "commit abc, read from gpu-a.json." in markdown_report(ROWS, {"on-gpu": committed})


def test_all_files_are_written(tmp_path: Path) -> None:
    write_pages(tmp_path, ROWS, {"first": document("first", RowConditions())})
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["plots/first-0.svg", "reproduce.html", "reproduce.md"]


def test_the_command_lists_rows_and_refuses_names_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert "continuous-batching" in listed.output
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu(tmp_path)
    monkeypatch.setattr(machine, "has_gpu", lambda: False)
    for arguments in (["nonsense"], ["--full", "--smoke"], ["--gpu"]):
        refused = CliRunner().invoke(app, ["reproduce", "--out", str(tmp_path), *arguments])
        assert (refused.exit_code, refused.output.startswith("error: ")) == (1, True)


def test_the_json_is_whole_after_each_row(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "reproduce.json")
    report.put(document("first", RowConditions()))
    content = json.loads((tmp_path / "reproduce.json").read_text())
    assert list(content["rows"]) == ["first"]
    assert not (tmp_path / "reproduce.part").exists()
