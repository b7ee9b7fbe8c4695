"""Which revisions living gateways serve, and the counts that they write, in a real Redis."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from stratos.common.errors import DependencyDown
from stratos.store.counters import arm_counts
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.counters.leases import LeaseStore
from stratos.store.counters.serving import LIVES_S, ServingStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis

CONFIG = RecordStoreConfig()
OLD, NEW, OTHER = (digit * 64 for digit in "abc")


async def test_a_gateway_lacks_a_revision_while_it_lives_and_does_not_say_that_it_serves_it(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        one, two, third = (ServingStore(redis, CONFIG, f"p/{name}") for name in ("one", "two", "third"))

        async def heard(name: str, ago_s: float = 0) -> None:
            seconds, micros = await redis.time()
            await redis.hset(f"{CONFIG.prefix}:gateways", name, str(int(1e6 * (seconds - ago_s)) + micros))

        with pytest.raises(DependencyDown):
            await one.lacking([NEW], [OLD])
        for name in ("p/one", "p/two", "p/third", "of-an-older-version"):
            await heard(name)
        assert await one.lacking([NEW], [OLD]) == ["of-an-older-version", "p/one", "p/third", "p/two"]
        await heard("of-an-older-version", ago_s=LIVES_S + 1)
        await one.say([OLD, NEW])
        await two.say([OLD])
        await third.say([OTHER])
        assert await one.lacking([NEW], [OLD]) == ["p/two"], "the third one is of another model"
        await two.say([NEW])
        assert await one.lacking([NEW], [OLD]) == []
        await redis.hdel(f"{CONFIG.prefix}:gateways", "p/two")
        await one.say([OLD])
        assert sorted(await redis.hkeys(f"{CONFIG.prefix}:serving")) == ["p/one", "p/third"]


async def test_after_an_outage_of_redis_gateways_count_until_each_had_the_time_to_be_heard_again(
    redis_url: str,
) -> None:
    async with open_redis(redis_url) as redis:
        names = ["p/one", "p/two", "p/dead"]
        one, two, dead = (ServingStore(redis, CONFIG, name) for name in names)
        leases = [LeaseStore(redis, CONFIG, name) for name in names]
        for lease in leases:
            await lease.lease([], 1.0)
        for serving, digests in ((one, [OLD, NEW]), (two, [OLD]), (dead, [OLD])):
            await serving.say(digests)
        seconds, _ = await redis.time()
        ago_us = {"p/one": 2 * LIVES_S, "p/two": 2 * LIVES_S, "p/dead": 4 * LIVES_S}
        await redis.hset(f"{CONFIG.prefix}:gateways", mapping={n: (seconds - s) * 10**6 for n, s in ago_us.items()})
        with pytest.raises(DependencyDown, match="was away"):
            await one.lacking([NEW], [OLD])
        await leases[0].lease([], 1.0)
        assert await one.lacking([NEW], [OLD]) == ["p/two"], "it was heard to the end, the dead one was not"
        await leases[1].lease([], 1.0)
        assert await one.lacking([NEW], [OLD]) == ["p/two"]
        await two.say([NEW])
        assert await one.lacking([NEW], [OLD]) == []


async def test_only_counts_that_have_changed_are_read_again_and_those_of_a_step_that_is_over_go(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = CountName("base", 1, 1)
    async with open_redis(redis_url) as redis:
        one, two = (ArmCountStore(redis, CONFIG, gateway) for gateway in ("one", "two"))
        for store, num in ((one, 3), (two, 4)):
            await store.put(name, {NEW: ArmCounts(num, 1, ttfts=Counter({7: num}))})
        assert (await one.sums(name))[NEW] == ArmCounts(7, 2, ttfts=Counter({7: 7}))
        read = list[str]()
        loads = json.loads

        def seen(text: str) -> object:
            read.append(text)
            return loads(text)

        monkeypatch.setattr(arm_counts.json, "loads", seen)
        await two.put(name, {NEW: ArmCounts(5, 1, ttfts=Counter({7: 5}))})
        assert (await one.sums(name))[NEW] == ArmCounts(8, 2, ttfts=Counter({7: 8}))
        assert (await one.sums(name))[NEW] == ArmCounts(8, 2, ttfts=Counter({7: 8}))
        assert len(read) == 1
        await one.forget(name)
        assert await one.sums(name) == {}
