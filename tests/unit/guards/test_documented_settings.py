"""The two pages of settings say what the settings classes say."""

from __future__ import annotations

import sys

import pytest
from typer.main import get_command

from scripts.docs import document_settings
from scripts.docs.first_settings import FIRST, MOST
from stratos.cli.main import app
from tests.support.paths import ROOT


def test_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["document_settings.py", "--check"])
    assert document_settings.main() == 0, capsys.readouterr().err


def test_the_first_page_shows_few_settings_and_the_other_one_all() -> None:
    first, full = document_settings.first_part(), document_settings.full_part()
    rows = [line for line in first.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(table.names) for table in FIRST) <= MOST == 40
    assert [row for row in rows if row.split(" | ")[0] not in full] == []
    for service in document_settings.SERVICES:
        for setting in document_settings.settings_of(document_settings.service_class(service)):
            assert f"| `{'__'.join(setting.path).upper()}` |" in full, setting.path


def test_every_flag_of_up_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    flags = [opt for param in get_command(app).commands["up"].params for opt in param.opts if opt.startswith("--")]
    assert len(flags) >= 12
    assert [flag for flag in flags if f"`{flag}" not in text] == []
