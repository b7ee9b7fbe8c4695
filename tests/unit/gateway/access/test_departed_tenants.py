"""Tenants that are no more are noticed once, and all workers are told until each has answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from stratos.common.errors import WorkerLost
from stratos.store.tenants import TenantRecord
from stratos_gateway.access import departed_tenants
from stratos_gateway.access.departed_tenants import DepartedTenants
from tests.support.waiting import eventually


@dataclass
class World:
    living: dict[str, TenantRecord] = field(default_factory=dict)
    answers: list[bool | WorkerLost] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    async def forget(self, tenant: str) -> bool:
        self.asked.append(tenant)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, WorkerLost):
            raise answer
        return answer


def record(name: str, salt: bytes) -> TenantRecord:
    return TenantRecord(name=name, cache_salt=salt, plan=f"plan-{name}")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, DepartedTenants]]:
    monkeypatch.setattr(departed_tenants, "RETRY_S", (0.0, 0.0))
    found = World(living={name: record(name, name.encode()) for name in "abc"})
    tenants = DepartedTenants(lambda: dict(found.living), found.forget, settle_s=0.0)
    tenants.on_departure(found.heard.append)
    tenants.look()
    task = asyncio.create_task(tenants.run())
    yield found, tenants
    task.cancel()
    await asyncio.wait({task})


async def test_a_deletion_and_another_tenant_of_the_name_are_departures(world: tuple[World, DepartedTenants]) -> None:
    found, tenants = world
    tenants.look()
    del found.living["a"]
    del found.living["b"]
    found.living["b2"] = record("b", b"another")
    found.living["d"] = record("d", b"d")
    tenants.look()
    tenants.look()
    await eventually(lambda: found.asked == ["a", "b"])
    assert found.heard == ["a", "b"]
    last = [tenants.last_record(name) for name in "abc"]
    assert [one.plan if one else None for one in last] == ["plan-a", "plan-b", "plan-c"]


async def test_workers_are_told_until_all_have_answered_and_not_for_ever(
    world: tuple[World, DepartedTenants],
) -> None:
    found, tenants = world
    found.answers = [WorkerLost("away"), False, True, False, False, False]
    for name in "ab":
        del found.living[name]
        tenants.look()
        await eventually(lambda name=name: found.asked.count(name) == 3)
    assert found.asked == ["a"] * 3 + ["b"] * 3
