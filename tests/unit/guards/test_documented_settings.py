"""docs/configuration.md says what the settings classes say."""

from __future__ import annotations

import sys

import pytest
from typer.main import get_command

from scripts.docs import document_settings
from stratos.cli.main import app
from tests.support.paths import ROOT


def test_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["document_settings.py", "--check"])
    assert document_settings.main() == 0, capsys.readouterr().err


def test_every_flag_of_up_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    flags = [opt for param in get_command(app).commands["up"].params for opt in param.opts if opt.startswith("--")]
    assert len(flags) >= 12
    assert [flag for flag in flags if f"`{flag}" not in text] == []
