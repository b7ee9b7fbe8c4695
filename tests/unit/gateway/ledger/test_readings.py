"""Turns at reading usage: one of a tenant at a time, four of all, and a rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.common.errors import ConcurrencyLimited, RateLimited
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant
from stratos.store.ledger.usage_reader import MAX_CONNECTIONS, UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.readings import UsageReadings
from tests.support.waiting import eventually

ACME = Tenant(name="acme")


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    async with open_redis("redis://127.0.0.1:1") as client:
        yield client


def readings(redis: Redis, clock: FakeClock) -> UsageReadings:
    return UsageReadings(UsageReader(redis, RecordStoreConfig()), clock, 60)


async def test_a_second_question_at_the_same_time_is_refused_and_one_after_it_is_not(redis: Redis) -> None:
    turns = readings(redis, FakeClock())
    async with turns.by(ACME):
        with pytest.raises(ConcurrencyLimited) as refused:
            async with turns.by(ACME):
                pass
        assert refused.value.after_s == 1
        async with turns.by(Tenant(name="other")):
            pass
    async with turns.by(ACME):
        pass


async def test_ten_come_at_once_and_one_a_second_from_then_on(redis: Redis) -> None:
    clock = FakeClock()
    turns = readings(redis, clock)

    async def refused() -> float | None:
        with pytest.raises(RateLimited) as error:
            await ask()
        return error.value.after_s

    async def ask() -> None:
        async with turns.by(ACME):
            pass

    for _ in range(10):
        await ask()
    assert await refused() == pytest.approx(1.0)
    clock.advance(1.0)
    await ask()
    assert await refused() == pytest.approx(1.0)


async def test_others_wait_for_a_place_and_admins_for_nothing_else(redis: Redis) -> None:
    turns, num_inside, most = readings(redis, FakeClock()), 0, 0
    release = asyncio.Event()

    async def ask(tenant: Tenant) -> None:
        nonlocal num_inside, most
        async with turns.by(tenant):
            num_inside += 1
            most = max(most, num_inside)
            await release.wait()
            num_inside -= 1

    tenants = [Tenant(name=f"t{number}") for number in range(20)] + [replace(ACME, role=Role.ADMIN)] * 20
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for tenant in tenants:
            group.create_task(ask(tenant))
        await eventually(lambda: num_inside == MAX_CONNECTIONS, "all places are taken")
        release.set()
    assert most == MAX_CONNECTIONS
