"""Ledgers that went by names of tenants: moved as often as an older gateway writes them, and told once."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from stratos.store.tenants import TenantRecord
from stratos_gateway.ledger.older_ledgers import OlderLedgers


class Ledger:
    def __init__(self) -> None:
        self.moved: list[tuple[str, str]] = []

    async def tenants(self) -> list[str]:
        return ["acme"]

    async def move(self, name: str, tenant: str) -> int:
        self.moved.append((name, tenant))
        return 1


async def test_a_ledger_that_is_moved_again_and_again_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ledger, tenant = Ledger(), TenantRecord(name="acme", cache_salt=b"s" * 32, is_legacy=True)

    async def first_look() -> None: ...

    older = OlderLedgers(cast("Any", ledger), lambda: {tenant.id: tenant}, first_look)
    for _ in range(3):
        await older.look()
    assert ledger.moved == [("acme", tenant.id)] * 3
    assert len([record for record in caplog.records if tenant.id in record.getMessage()]) == 1
