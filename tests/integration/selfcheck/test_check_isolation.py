"""``check-isolation`` on a gateway whose worker keeps a prefix cache: it passes, and every hole is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.core.ledger.sums import UsageTable, keep_fields, regroup
from stratos.core.tenant import Tenant
from stratos.rpc.clients.admin import AdminClient
from stratos.selfcheck.findings import Level
from stratos.selfcheck.isolation.check import IsolationCheck, run_check
from stratos.store.ledger.usage_reader import UsageReader
from stratos_gateway.admin.routes import AdminCaller
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import END_ID

COUNTS, TIMES = "prefix cache, by cached tokens", "prefix cache, by time"
MODELS, ADMIN, LEDGER = "models, ACL matrix", "admin API, roles", "usage ledger"
MISS_S = 0.25
"""Long beside what else a request takes on a busy machine."""


class CachingScript:
    """Answers of a worker: their text, their speed, and how much of the prompt they call cached."""

    def __init__(self, world: AdminWorld) -> None:
        self.worker = world.worker
        self.is_salted = True
        self.is_counted = True
        self.miss_s = MISS_S
        self._seen: set[tuple[bytes, tuple[int, ...]]] = set()

    def __call__(self, submit: decode_pb2.Submit, choice: int) -> list[int]:
        entry = (submit.terms.cache_salt if self.is_salted else b"", tuple(submit.prompt_ids))
        is_hit = entry in self._seen
        self._seen.add(entry)
        self.worker.cached_tokens = len(submit.prompt_ids) - 1 if is_hit and self.is_counted else 0
        self.worker.step_s = 0.005 if is_hit else self.miss_s
        return [END_ID]


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path) as found:
        found.worker.script = CachingScript(found)
        yield found


async def check(world: AdminWorld) -> dict[str, Level]:
    admin = AdminClient(str(world.http.base_url), world.keys["admin"])
    wanted = IsolationCheck(api_url=str(world.public.base_url), num_rounds=3)
    with closing(admin):
        found = await asyncio.to_thread(run_check, admin, wanted)
    left = (await world.call("GET", "/tenants")).json()["data"]
    assert {tenant["name"] for tenant in left} == {"acme", "other", "platform"}, "what it made is gone"
    return {finding.check: finding.level for finding in found}


async def test_a_platform_that_isolates_passes(world: AdminWorld) -> None:
    assert await check(world) == dict.fromkeys((COUNTS, TIMES, MODELS, ADMIN, LEDGER), Level.OK)


async def test_a_shared_cache_is_found_by_its_counts_and_by_its_times(world: AdminWorld) -> None:
    world.worker.script.is_salted = False
    found = await check(world)
    assert {name for name, level in found.items() if level is Level.FAIL} == {COUNTS, TIMES}
    world.worker.script.is_counted = False
    found = await check(world)
    assert (found[COUNTS], found[TIMES]) == (Level.UNKNOWN, Level.FAIL), "times tell what counts hide"


async def test_models_and_tenants_that_can_be_reached_are_found(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.worker.script.miss_s = 0.0  # times are for the tests above
    with monkeypatch.context() as patch:
        patch.setattr(Tenant, "may_use", lambda self, model: True)
        assert (await check(world))[MODELS] is Level.FAIL
    with monkeypatch.context() as patch:
        patch.setattr(AdminCaller, "find", lambda self, name: self.tenants.get(name))
        assert (await check(world))[ADMIN] is Level.FAIL


async def test_usage_of_another_tenant_is_found(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    read, seen = UsageReader.table, list[str]()

    async def table_of_all(reader: UsageReader, tenant: str, days: Sequence[str], columns: Sequence[str]) -> UsageTable:
        seen.append(tenant)
        tables = [await read(reader, name, days, columns) for name in dict.fromkeys(seen)]
        return regroup(tables, keep_fields(*columns))

    world.worker.script.miss_s = 0.0
    monkeypatch.setattr(UsageReader, "table", table_of_all)
    assert (await check(world))[LEDGER] is Level.FAIL
