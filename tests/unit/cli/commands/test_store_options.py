"""Commands about stores take from the environment what a pod of the chart has there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli import backups, stores
from stratos.cli.commands.stores.admin import admin_app
from stratos.cli.commands.stores.backups import backups_app
from stratos.cli.stores import StoreTarget
from stratos.common.errors import BadRequest

POD = {
    "REDIS_URL": "redis://store:6379/0",
    "STRATOS_OBJECT_STORE": "s3://bucket",
    "STRATOS_RECORDS_PREFIX": "site",
    "STRATOS_BACKUPS": "s3://copies",
}


def test_records_and_backups_are_those_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def listed(_: StoreTarget, url: str) -> list[Any]:
        told.append(url)
        return []

    async def exported(target: StoreTarget, _: Path) -> None:
        told.append(target.prefix)
        raise BadRequest("this is enough")

    monkeypatch.setattr(backups, "list_backups", listed)
    monkeypatch.setattr(stores, "run_export", exported)
    assert CliRunner().invoke(backups_app, ["backups"], env=POD).exit_code == 0
    assert "this is enough" in CliRunner().invoke(admin_app, ["export", "records.jsonl"], env=POD).output
    assert told == ["s3://copies", "site"]
