"""Budgets while what tenants owe cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.errors import DependencyDown, InsufficientQuota
from stratos.core.tenancy.prices import Budget
from stratos.core.tenant import Tenant
from stratos_gateway.ledger.budgets import Budgets
from stratos_gateway.metrics import GatewayMetrics
from tests.support.worlds.gateway_keys import PLAN


async def test_one_request_of_a_tenant_waits_for_redis_and_no_other_while_it_is_away() -> None:
    asked = 0

    async def read(tenant: str, month: str) -> int:
        nonlocal asked
        asked += 1
        raise DependencyDown("away")

    budgets = Budgets(read, GatewayMetrics(CollectorRegistry()), 1.0, lambda: 1_795_564_800.0)
    tenant = Tenant(name="acme", plan=replace(PLAN, budget=Budget(hard=10)))
    for _ in range(20):
        assert await budgets.check(tenant) == []
    assert asked == 1
    budgets.note_due(tenant.id, "2026-11", 10)
    with pytest.raises(InsufficientQuota):
        await budgets.check(tenant)
