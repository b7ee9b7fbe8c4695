"""Sealed answers in a real Redis: whose they open for, until when, and how many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.store.data_keys import Purpose, sub_key
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.answer_store import AnswerStore

CONFIG = RecordStoreConfig()
DATA_KEYS = {"tn_1": bytes(range(32)), "tn_2": bytes(range(1, 33))}
PLANTED = b"the Blue Heron flies at dawn"


def find_key(tenant: str, purpose: Purpose) -> bytes | None:
    return sub_key(DATA_KEYS[tenant], purpose) if tenant in DATA_KEYS else None


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as client:
        yield client


@pytest.fixture
def store(redis: Redis) -> AnswerStore:
    return AnswerStore(redis, CONFIG, 100_000, find_key)


async def answer(store: AnswerStore, tenant: str, request: bytes = b"request") -> bytes | None:
    found = await store.find(tenant, request)
    return None if found is None else found[0]


async def test_an_answer_opens_for_its_tenant_and_its_request_alone(store: AnswerStore, redis: Redis) -> None:
    assert await store.put("tn_1", b"request", PLANTED, 60)
    found = await store.find("tn_1", b"request")
    assert found is not None
    assert (found[0], 59 < found[1] <= 60) == (PLANTED, True)
    assert await answer(store, "tn_2") is None
    assert await answer(store, "tn_1", b"another") is None
    ((name, text),) = (await redis.hgetall("stratos:answers")).items()
    await store.put("tn_1", b"another", b"x", 60)
    (other,) = [n for n in await redis.hkeys("stratos:answers") if n != name]
    await redis.hset("stratos:answers", other, text)
    assert await answer(store, "tn_1", b"another") is None, "it opens at its own place alone"
    await redis.hset("stratos:answers", name, text[:-8] + "AAAAAAA=")
    assert await answer(store, "tn_1") is None, "altered is as good as absent"


async def test_a_tenant_without_a_data_key_keeps_nothing(store: AnswerStore, redis: Redis) -> None:
    assert not await store.put("tn_3", b"request", PLANTED, 60)
    assert await answer(store, "tn_3") is None
    assert await redis.keys() == []


async def test_what_has_ended_and_what_is_too_much_goes(store: AnswerStore, redis: Redis) -> None:
    assert await store.put("tn_1", b"old", PLANTED, 60)
    (name,) = await redis.hkeys("stratos:answers")
    await redis.zadd("stratos:answers:until", {name: 1})
    assert await answer(store, "tn_1", b"old") is None
    for number in range(200):
        assert await store.put("tn_1", str(number).encode(), b"x" * 1000, 60 + number)
    kept = await redis.hgetall("stratos:answers")
    assert 0 < sum(len(field) + len(text) for field, text in kept.items()) <= 100_000
    assert len(kept) == await redis.zcard("stratos:answers:until") < 200
    assert name not in kept
    assert await answer(store, "tn_1", b"199") == b"x" * 1000, "what ends last stays"
    assert not await store.put("tn_1", b"large", b"x" * 60_000, 60)
    for number in range(200):
        await store.put("tn_1", b"199", b"y" * number, 60)
    assert int(await redis.get("stratos:answers:bytes")) <= 100_000


async def test_a_deleted_tenants_answers_go_and_no_others(store: AnswerStore, redis: Redis) -> None:
    for tenant in DATA_KEYS:
        for number in range(20):
            await store.put(tenant, str(number).encode(), PLANTED, 60)
    await store.forget("tn_1")
    assert {name.partition("/")[0] for name in await redis.hkeys("stratos:answers")} == {"tn_2"}
    assert await redis.zcard("stratos:answers:until") == 20
    await store.forget("tn_2")
    assert await redis.get("stratos:answers:bytes") == "0"


async def test_a_foreign_store_neither_takes_nor_gives(redis: Redis) -> None:
    store = AnswerStore(redis, CONFIG, 100_000, find_key, lambda: "ours")
    await redis.hset("stratos:store", "id", "another")
    with pytest.raises(DependencyDown):
        await store.put("tn_1", b"request", PLANTED, 60)
    with pytest.raises(DependencyDown):
        await store.find("tn_1", b"request")
