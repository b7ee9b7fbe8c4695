"""Sealed responses in a real Redis and an object store: whose they open for, until when, how many, and what is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.store.data_keys import Purpose, sub_key
from stratos.store.local_store import LocalStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.response_store import ResponseBounds, ResponseStore

CONFIG = RecordStoreConfig()
DATA_KEYS = {"tn_1": bytes(range(32)), "tn_2": bytes(range(1, 33))}
PLANTED = b"the Blue Heron flies at dawn"
ONE, TWO = "resp_" + "a" * 24, "resp_" + "b" * 24


def find_key(tenant: str, purpose: Purpose) -> bytes | None:
    assert purpose is Purpose.STORED_RESPONSES
    return sub_key(DATA_KEYS[tenant], purpose) if tenant in DATA_KEYS else None


async def has_room() -> None: ...


def open_store(redis: Redis, objects: Path | None = None, **changes: Any) -> ResponseStore:
    bounds = {"kept_s": 60.0, "tenant_bytes": 100_000, "inline_bytes": 1000, **changes}
    store = None if objects is None else LocalStore(objects)
    return ResponseStore(redis, CONFIG, ResponseBounds(**bounds), find_key, store, has_room)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as client:
        yield client


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_response_opens_for_its_tenant_and_its_id_alone(redis: Redis) -> None:
    store = open_store(redis)
    await store.put("tn_1", ONE, PLANTED)
    assert await store.find("tn_1", ONE) == PLANTED
    assert await store.find("tn_2", ONE) is None
    assert await store.find("tn_1", TWO) is None
    text = await redis.hget("stratos:responses:tn_1", ONE)
    await redis.hset("stratos:responses:tn_2", ONE, text)
    await redis.zadd("stratos:responses:tn_2:until", {ONE: 10**15})
    assert await store.find("tn_2", ONE) is None, "it opens at its own place alone"
    await redis.hset("stratos:responses:tn_1", ONE, text[:-8] + "AAAAAAA=")
    assert await store.find("tn_1", ONE) is None, "altered is as good as absent"


@pytest.mark.parametrize("name", ["", "x", "resp_1", "resp_" + "a" * 23, "../resp", ONE + "\n", "*"])
async def test_what_is_no_id_is_not_looked_for(name: str) -> None:
    store = open_store(Redis.from_url("redis://127.0.0.1:1"))
    assert await store.find("tn_1", name) is None
    assert not await store.delete("tn_1", name)


async def test_a_tenant_without_a_data_key_is_refused(redis: Redis) -> None:
    store = open_store(redis)
    for call in (store.check("tn_3"), store.put("tn_3", ONE, PLANTED), store.find("tn_3", ONE)):
        with pytest.raises(DependencyDown):
            await call
    assert await redis.keys() == []


async def test_what_has_ended_is_gone_and_its_object_is_deleted(redis: Redis, tmp_path: Path) -> None:
    store = open_store(redis, tmp_path, inline_bytes=0)
    await store.put("tn_1", ONE, PLANTED)
    assert len(files(tmp_path)) == 1
    await redis.zadd("stratos:responses:tn_1:until", {ONE: 1})
    assert await store.find("tn_1", ONE) is None
    await store.put("tn_1", TWO, PLANTED)
    assert await redis.hkeys("stratos:responses:tn_1") == [TWO]
    assert await store.delete_due_objects() == 1
    assert await store.delete_due_objects() == 0
    assert [path.name for path in files(tmp_path)] == [TWO]
    assert await store.find("tn_1", TWO) == PLANTED
    assert 0 < await redis.pttl("stratos:responses:tn_1") <= 120_000, "nothing stays of a tenant that is silent"


async def test_large_ones_are_in_the_object_store_sealed(redis: Redis, tmp_path: Path) -> None:
    store, large = open_store(redis, tmp_path), PLANTED + os.urandom(5000)
    await store.put("tn_1", ONE, large)
    [path] = files(tmp_path)
    assert path.relative_to(tmp_path) == Path("responses/tn_1") / ONE
    assert PLANTED not in path.read_bytes()
    assert await store.find("tn_1", ONE) == large
    await store.put("tn_1", TWO, PLANTED)
    assert len(files(tmp_path)) == 1, "small ones stay in Redis"
    path.write_bytes(path.read_bytes()[:-1])
    assert await store.find("tn_1", ONE) is None, "cut is as good as absent"
    path.unlink()
    assert await store.find("tn_1", ONE) is None
    with pytest.raises(DependencyDown):
        await open_store(redis).find("tn_1", ONE)


async def test_an_object_without_a_response_does_not_outlive_its_time(redis: Redis, tmp_path: Path) -> None:
    """The gateway dies between the object and its entry."""
    store = open_store(redis, tmp_path, inline_bytes=0)
    await store.put("tn_1", ONE, PLANTED)
    await redis.delete("stratos:responses:tn_1", "stratos:responses:tn_1:until")
    assert await store.delete_due_objects() == 0
    [(key, _)] = await redis.zrange("stratos:responses:objects", 0, -1, withscores=True)
    await redis.zadd("stratos:responses:objects", {key: 1})
    assert await store.delete_due_objects() == 1
    assert files(tmp_path) == []


async def test_deleting_is_at_once_and_tells_whether_there_was_one(redis: Redis, tmp_path: Path) -> None:
    store = open_store(redis, tmp_path, inline_bytes=0)
    await store.put("tn_1", ONE, PLANTED)
    assert not await store.delete("tn_2", ONE)
    assert await store.delete("tn_1", ONE)
    assert not await store.delete("tn_1", ONE)
    assert await store.find("tn_1", ONE) is None
    await store.delete_due_objects()
    assert files(tmp_path) == []


async def test_a_tenant_keeps_the_newest_within_its_bound_and_takes_no_room_of_others(
    redis: Redis, tmp_path: Path
) -> None:
    store, other = open_store(redis, tmp_path, kept_s=10**6), f"resp_{0:024x}"
    begin_ms = (await redis.time())[0] * 1000 + 10**8  # no two of them end at the same time
    await store.put("tn_2", other, PLANTED)
    names = [f"resp_{number:024x}" for number in range(60)]
    for number, name in enumerate(names):
        await store.put("tn_1", name, os.urandom(500 if number % 2 else 5000))
        await redis.zadd("stratos:responses:tn_1:until", {name: begin_ms + number})
    kept = await redis.hgetall("stratos:responses:tn_1")
    assert 0 < len(kept) < 60
    assert sorted(kept) == names[-len(kept) :], "the oldest go first"
    assert await redis.zcard("stratos:responses:tn_1:until") == len(kept)
    assert 50_000 < int(await redis.get("stratos:responses:tn_1:bytes")) <= 100_000
    assert await store.find("tn_2", other) == PLANTED
    while await store.delete_due_objects():
        pass
    objects = {path.name for path in files(tmp_path)}
    assert objects == {name for name, text in kept.items() if text.startswith("o")}
    with pytest.raises(DependencyDown):
        await store.put("tn_1", ONE, os.urandom(60_000))
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 100_000


async def test_a_deleted_tenants_responses_go_and_no_others(redis: Redis, tmp_path: Path) -> None:
    store = open_store(redis, tmp_path, inline_bytes=0)
    for tenant in DATA_KEYS:
        for name in (ONE, TWO):
            await store.put(tenant, name, PLANTED)
    await store.forget("tn_1")
    await store.delete_due_objects()
    assert {path.parent.name for path in files(tmp_path)} == {"tn_2"}
    assert await redis.exists("stratos:responses:tn_1", "stratos:responses:tn_1:until") == 0
    assert await store.find("tn_2", ONE) == PLANTED


async def test_a_foreign_store_neither_takes_nor_gives(redis: Redis) -> None:
    bounds = ResponseBounds(kept_s=60, tenant_bytes=10**6, inline_bytes=10**6)
    store = ResponseStore(redis, CONFIG, bounds, find_key, None, has_room, lambda: "ours")
    await redis.hset("stratos:store", "id", "another")
    calls = [store.check("tn_1"), store.put("tn_1", ONE, PLANTED), store.find("tn_1", ONE), store.forget("tn_1")]
    for call in [*calls, store.delete("tn_1", ONE)]:
        with pytest.raises(DependencyDown):
            await call


async def test_a_response_that_is_kept_twice_keeps_its_object(redis: Redis, tmp_path: Path) -> None:
    """Two gateways end one answer: the second record has the object of the first one."""
    store = open_store(redis, tmp_path, inline_bytes=0)
    for _ in range(2):
        await store.put("tn_1", ONE, PLANTED)
    assert await store.delete_due_objects() == 0
    assert await store.find("tn_1", ONE) == PLANTED


async def test_what_is_deleted_leaves_its_room_however_long_its_tenant_is_silent(redis: Redis) -> None:
    store, own = open_store(redis), "stratos:responses:tn_1"
    for name in (ONE, TWO):
        await store.put("tn_1", name, PLANTED)
    assert await store.delete("tn_1", ONE)
    assert await redis.pttl(f"{own}:bytes") > 0, "bytes end with what they count"
    await redis.delete(own, f"{own}:until")
    await redis.set(f"{own}:bytes", 99_999)  # as versions before this one left it
    for name in (ONE, TWO):
        await store.put("tn_1", name, PLANTED)
    assert set(await redis.hkeys(own)) == {ONE, TWO}
