"""The largest tenants of all gateways, counted in a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.tenant import PLATFORM_TENANT
from stratos.store.counters.tenant_tokens import HALF_LIFE_S, TenantTokenStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.tenant_series import TenantSeries

CONFIG = RecordStoreConfig()
SERIES_KEY = f"{CONFIG.prefix}:tenant_series"
Counted = tuple[Redis, TenantTokenStore]


def name_of(tenant_id: str) -> str | None:
    return None if tenant_id == "gone" else f"name of {tenant_id}"


class Gateway:
    """One that shows the tokens of some tenants."""

    def __init__(self, store: TenantTokenStore, most: int) -> None:
        self.registry = CollectorRegistry()
        self.metrics = GatewayMetrics(self.registry, "base", most)
        self.series = TenantSeries(store, self.metrics, name_of, 60)

    def answer(self, tokens: Mapping[str, int]) -> None:
        for tenant, number in tokens.items():
            self.series.note(tenant, number)
            self.metrics.running(f"name of {tenant}", 1).output_tokens.inc(number)

    def shown(self) -> dict[str, float]:
        samples = (s for family in self.registry.collect() for s in family.samples)
        return {s.labels["tenant"]: s.value for s in samples if s.name == "stratos_output_tokens_total"}


async def test_gateways_agree_on_the_largest_of_300_tenants_however_the_tokens_come(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        store = TenantTokenStore(redis, CONFIG, 20, 0)
        one, two = Gateway(store, 20), Gateway(store, 20)
        sizes = {f"t{number}": number for number in range(1, 301)}
        one.answer({tenant: sizes[tenant] // 2 for tenant in sorted(sizes)})
        two.answer({tenant: sizes[tenant] - sizes[tenant] // 2 for tenant in sorted(sizes, reverse=True)})
        one.series.note(PLATFORM_TENANT, 10**9)
        one.series.note("gone", 1)
        before = [sum(gateway.shown().values()) for gateway in (one, two)]
        for gateway in (one, two, one):
            await gateway.series.turn()
        one.answer(dict.fromkeys(sizes, 1))
        two.answer(dict.fromkeys(sizes, 1))
        largest = {f"name of t{number}" for number in range(281, 301)}
        assert one.shown().keys() - {"other"} == two.shown().keys() - {"other"} == largest
        for gateway, total in zip((one, two), before, strict=True):
            assert gateway.shown()["other"] >= 280, "all others count here"
            assert sum(gateway.shown().values()) <= total + 300


async def test_an_open_stream_of_a_tenant_that_loses_its_series_counts_among_the_others(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        gateway = Gateway(TenantTokenStore(redis, CONFIG, 1, 0), 1)
        gateway.answer({"small": 5})
        stream = gateway.metrics.running("name of small", 1)
        gateway.answer({"large": 50})
        await gateway.series.turn()
        stream.output_tokens.inc(7)
        gateway.answer({"small": 2, "large": 1})
        assert gateway.shown() == {"other": 50 + 7 + 2, "name of large": 1}


@pytest.fixture
async def counted(redis_url: str) -> AsyncIterator[Counted]:
    async with open_redis(redis_url) as redis:
        yield redis, TenantTokenStore(redis, CONFIG, 4, 0)


async def test_tokens_count_half_after_a_while_and_numbers_begin_again_before_they_overflow(counted: Counted) -> None:
    redis, store = counted
    await store.add({"early": 300})
    since = int(await redis.hget(SERIES_KEY, "since"))
    await redis.hset(SERIES_KEY, "since", since - HALF_LIFE_S)
    assert await store.add({"late": 160}) == ["late", "early"], "320 at the weight of the first"
    await redis.hset(SERIES_KEY, "since", since - 400 * HALF_LIFE_S)
    assert await store.add({"last": 1}) == ["last", "late", "early"]
    assert int(await redis.hget(SERIES_KEY, "since")) >= since
    assert await redis.zscore(f"{CONFIG.prefix}:tenant_tokens", "last") == 1


async def test_who_has_a_series_keeps_it_until_it_is_well_below_the_others(counted: Counted) -> None:
    _, store = counted
    assert await store.add({"a": 40, "b": 30, "c": 20, "d": 10}) == ["a", "b", "c", "d"]
    assert await store.add({"e": 11}) == ["a", "b", "c", "d"], "the fifth of four is near"
    assert await store.add({"f": 12}) == ["a", "b", "c", "f"], "the sixth is not"
    await store.forget("a")
    assert await store.add({}) == ["b", "c", "f", "e"]


async def test_a_choice_holds_for_its_time_and_another_store_takes_nothing(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        store = TenantTokenStore(redis, CONFIG, 1, 3600)
        assert await store.add({"a": 1}) == ["a"]
        assert await store.add({"b": 5}) == ["a"]
        foreign = TenantTokenStore(redis, CONFIG, 1, 0, lambda: "another store")
        with pytest.raises(DependencyDown):
            await foreign.add({"c": 9})
        with pytest.raises(DependencyDown):
            await foreign.forget("a")
        assert await store.add({}) == ["a"]
