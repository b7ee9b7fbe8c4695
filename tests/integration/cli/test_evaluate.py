"""``stratos evaluate`` as it is called: exit codes, report and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from tests.support.paths import ROOT

DRAFT, TEXT = str(ROOT / "models" / "draft"), str(ROOT / "tests/fixtures/held_out/prose.txt")
SMALL = ["--text", TEXT, "--window", "32", "--max-tokens", "512", "--threads", "1"]


@pytest.mark.slow
def test_a_quantised_copy_gets_a_verdict_and_a_report(tmp_path: Path) -> None:
    command = ["evaluate", DRAFT, DRAFT, *SMALL, "--quantization", "int8", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(
        app, [*command, "--max-loss", "0.5", "--max-stratum-loss", "1", "--max-score-loss", "0.5"]
    )
    assert done.exit_code == 0, done.output
    assert "verdict: acceptable" in done.output
    report = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert report["candidate"]["quantization"] == "int8-rows-at-load"
    assert report["candidate"]["step_weight_bytes"] < report["reference"]["step_weight_bytes"]
    assert "<svg" in (tmp_path / "out/evaluation.html").read_text()


def test_bounds_that_mean_nothing_are_refused() -> None:
    assert CliRunner().invoke(app, ["evaluate", DRAFT, DRAFT, *SMALL, "--max-loss", "0"]).exit_code == 1
