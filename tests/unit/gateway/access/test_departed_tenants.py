"""Tenants that are no more are noticed once, and all workers are told until each has answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from redis.exceptions import ResponseError

from stratos.common.errors import DependencyDown, WorkerLost
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos.store.tenants import TenantRecord
from stratos_gateway.access import departed_tenants
from stratos_gateway.access.departed_tenants import DepartedTenants
from tests.support.waiting import eventually


class CountedSnapshot(FollowedSnapshot):
    """A snapshot that knows how often all tenants were asked for."""

    num_listed = 0

    def of_owner(self, kind: Kind, owner: str) -> Mapping[str, Record]:
        self.num_listed += 1
        return super().of_owner(kind, owner)

    def of_kind(self, kind: Kind) -> list[Record]:
        self.num_listed += 1
        return super().of_kind(kind)


@dataclass
class World:
    snapshot: CountedSnapshot = field(default_factory=CountedSnapshot)
    answers: list[bool | Exception] = field(default_factory=list)
    """Of the workers."""
    asked: list[str] = field(default_factory=list)
    store: list[Exception | None] = field(default_factory=list)
    """Answers of the store."""
    store_asked: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    version: int = 0

    def put(self, tenant: TenantRecord | None, name: str = "") -> None:
        """A new version of a record; without a tenant it is a tombstone."""
        self.version += 1
        name = name if tenant is None else tenant.name
        found = Record(
            kind=Kind.TENANT, id=name, version=self.version, is_deleted=tenant is None, value=tenant, text=""
        )
        self.snapshot.merge(found)

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


def record(name: str, salt: str = "") -> TenantRecord:
    return TenantRecord(name=name, cache_salt=(salt or name).encode(), plan=f"plan-{name}")


def ids(*names: str) -> list[str]:
    return [record(name).id for name in names]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, DepartedTenants]]:
    monkeypatch.setattr(departed_tenants, "RETRY_S", (0.0, 0.0))
    found = World()
    found.put(record("a"))  # of a restored copy
    tenants = DepartedTenants(found.snapshot, (found.forget_in_store, found.forget), settle_s=0.0)
    tenants.on_departure(found.heard.append)
    for name in "bc":
        found.put(record(name))
    task = asyncio.create_task(tenants.run())
    yield found, tenants
    task.cancel()
    await asyncio.wait({task})


async def test_a_deletion_and_another_tenant_of_the_name_are_departures(world: tuple[World, DepartedTenants]) -> None:
    found, tenants = world
    found.put(replace(record("a"), is_closing=True))
    found.put(None, "a")
    found.put(record("b", "another"))
    found.put(replace(record("c"), is_suspended=True))
    found.put(record("d"))
    await eventually(lambda: found.asked == ids("a", "b"))
    assert found.heard == ids("a", "b")
    last = [tenants.last_record(tenant_id) for tenant_id in ids("a", "b", "c")]
    assert [one.plan if one else None for one in last] == ["plan-a", "plan-b", "plan-c"]


async def test_a_change_costs_what_has_changed_however_many_tenants_there_are(
    world: tuple[World, DepartedTenants],
) -> None:
    found, tenants = world
    for number in range(300):
        found.put(record(f"t{number}"))
    found.snapshot.num_listed = 0
    found.put(replace(record("t7"), is_suspended=True))
    found.put(None, "t8")
    await eventually(lambda: found.asked == ids("t8"))
    assert found.snapshot.num_listed == 0
    last = tenants.last_record(record("t7").id)
    assert last is not None
    assert last.is_suspended


async def test_workers_are_told_until_all_have_answered_and_not_for_ever(
    world: tuple[World, DepartedTenants],
) -> None:
    found, _ = world
    found.answers = [WorkerLost("away"), False, True, False, False, False]
    a, b = ids("a", "b")
    for name, tenant_id in (("a", a), ("b", b)):
        found.put(None, name)
        await eventually(lambda tenant_id=tenant_id: found.asked.count(tenant_id) == 3)
    assert found.asked == [a] * 3 + [b] * 3


async def test_a_store_that_is_away_or_refuses_keeps_no_worker_from_being_told(
    world: tuple[World, DepartedTenants],
) -> None:
    found, _ = world
    found.store = [DependencyDown("away"), ResponseError("NOPERM"), None]
    found.put(None, "a")
    await eventually(lambda: found.store_asked == ids("a") * 3)
    assert found.asked == ids("a"), "once, since all of them answered"
    found.put(None, "b")
    await eventually(lambda: found.asked == ids("a", "b"), "the task lives")
