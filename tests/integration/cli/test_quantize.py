"""``stratos quantize`` as it is called: progress, the result in a line, exit codes and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from tests.support.paths import ROOT

TEXT = str(ROOT / "tests/fixtures/held_out/prose.txt")
COMMAND = ["quantize", "--model", str(ROOT / "models/draft"), "--calibration", TEXT, "--threads", "1"]


@pytest.mark.slow
def test_a_copy_is_written_and_a_loss_beyond_the_bound_is_an_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "--scheme", "int4-rtn", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*command, "--max-loss", "0.0001"])
    assert done.exit_code == 3, done.output
    assert "perplexity of held back text" in done.output
    assert "layer 3 of 3" in capfd.readouterr().err
    assert (tmp_path / "out/config.json").exists()


def test_an_error_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*COMMAND, "--scheme", "int5", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "scheme 'int5' is not known" in done.output
