"""docs/configuration.md says what the settings classes say."""

from __future__ import annotations

import subprocess
import sys

from typer.main import get_command

from stratos.cli.main import app
from tests.support.paths import ROOT


def test_tables_are_up_to_date() -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "document_settings.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_flag_of_up_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    flags = [opt for param in get_command(app).commands["up"].params for opt in param.opts if opt.startswith("--")]
    assert len(flags) >= 12
    assert [flag for flag in flags if f"`{flag}" not in text] == []
