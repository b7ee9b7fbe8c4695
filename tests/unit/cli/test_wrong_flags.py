"""Flags of ``stratos up`` that it cannot use: one line that names the flag, exit code 1, nothing begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--decode", "17"), "--decode must be between 0 and 16"),
        (("--max-decode", "1", "--decode", "2"), "--max-decode"),
        (("--engine", "magic"), "--engine must be one of torch, fake"),
        (("--object-store", "ftp://x"), "--object-store must be"),
    ],
)
def test_a_wrong_flag_is_named(tmp_path: Path, arguments: tuple[str, ...], hint: str) -> None:
    result = CliRunner().invoke(app, ["up", "--data-dir", str(tmp_path / "data"), *arguments])
    assert result.exit_code == 1
    assert hint in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "data").exists()
