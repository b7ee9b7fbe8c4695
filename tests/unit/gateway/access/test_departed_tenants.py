"""Tenants that are no more are noticed once, and all workers are told until each has answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from redis.exceptions import ResponseError

from stratos.common.errors import DependencyDown, WorkerLost
from stratos.store.tenants import TenantRecord
from stratos_gateway.access import departed_tenants
from stratos_gateway.access.departed_tenants import DepartedTenants
from tests.support.waiting import eventually


@dataclass
class World:
    living: dict[str, TenantRecord] = field(default_factory=dict)
    answers: list[bool | Exception] = field(default_factory=list)
    """Of the workers."""
    asked: list[str] = field(default_factory=list)
    store: list[Exception | None] = field(default_factory=list)
    """Answers of the store."""
    store_asked: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    async def forget(self, tenant: str) -> bool:
        self.asked.append(tenant)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def forget_in_store(self, tenant: str) -> None:
        self.store_asked.append(tenant)
        if self.store and (error := self.store.pop(0)) is not None:
            raise error


def record(name: str, salt: bytes) -> TenantRecord:
    return TenantRecord(name=name, cache_salt=salt, plan=f"plan-{name}")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, DepartedTenants]]:
    monkeypatch.setattr(departed_tenants, "RETRY_S", (0.0, 0.0))
    found = World(living={name: record(name, name.encode()) for name in "abc"})
    tenants = DepartedTenants(lambda: dict(found.living), (found.forget_in_store, found.forget), settle_s=0.0)
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


async def test_a_store_that_is_away_or_refuses_keeps_no_worker_from_being_told(
    world: tuple[World, DepartedTenants],
) -> None:
    found, tenants = world
    found.store = [DependencyDown("away"), ResponseError("NOPERM"), None]
    del found.living["a"]
    tenants.look()
    await eventually(lambda: found.store_asked == ["a"] * 3)
    assert found.asked == ["a"], "once, since all of them answered"
    del found.living["b"]
    tenants.look()
    await eventually(lambda: found.asked == ["a", "b"], "the task lives")
