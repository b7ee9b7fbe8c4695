"""API keys against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from stratos.common.errors import BadRequest, DependencyDown, InvalidApiKey, NotFound
from stratos.store.key_store import KeyStore
from stratos.store.keys import key_mac, mint_key, parse_key
from stratos.store.redis import open_redis
from tests.support.redis_server import RedisServer

PEPPER = "0123456789abcdef"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as client:
        yield client


async def test_a_key_authenticates_and_its_text_is_nowhere_in_redis(redis: Redis) -> None:
    store = KeyStore(redis, PEPPER)
    key = await store.create_key("acme", "laptop", priority_class=1)
    record = await store.find(key)
    assert (record.tenant.name, record.name, record.tenant.priority_class) == ("acme", "laptop", 1)
    assert len(record.tenant.cache_salt) == 32
    stored = []
    for name in await redis.keys():
        kind = await redis.type(name)
        stored.append(name + str(await redis.hgetall(name) if kind == "hash" else await redis.get(name)))
    secret = key.rpartition("-")[2]
    assert not any(secret in text or PEPPER in text for text in stored)
    assert record.mac not in repr(record)
    assert record.tenant.cache_salt.hex() not in repr(record)


async def test_one_tenant_keeps_one_salt_and_two_differ(redis: Redis) -> None:
    store = KeyStore(redis, PEPPER)
    keys = [await store.create_key(tenant, "k") for tenant in ("acme", "acme", "other")]
    salts = [(await store.authenticate(key)).cache_salt for key in keys]
    assert salts[0] == salts[1] != salts[2]


async def test_an_own_key_can_be_stored_twice(redis: Redis) -> None:
    store, key = KeyStore(redis, PEPPER), mint_key()
    assert [await store.create_key("acme", "k", key=key) for _ in range(2)] == [key, key]
    assert (await store.find(key)).key_id == parse_key(key)


async def test_what_must_not_pass(redis: Redis) -> None:
    store = KeyStore(redis, PEPPER)
    key = await store.create_key("acme", "k")
    wrong_secret = key[:-1] + ("0" if key[-1] != "0" else "1")
    for _ in range(2):  # the second time the key is in the snapshot
        for text in (wrong_secret, mint_key(), "garbage"):
            with pytest.raises(InvalidApiKey):
                await store.authenticate(text)
        await store.authenticate(key)
    with pytest.raises(InvalidApiKey):
        await KeyStore(redis, "another-pepper-of-16").authenticate(key)
    assert key_mac(PEPPER, key) != key_mac("another-pepper-of-16", key)


async def test_a_revoked_key_is_dropped_by_the_running_refresh(redis: Redis) -> None:
    gateway, admin = KeyStore(redis, PEPPER, refresh_s=0.02), KeyStore(redis, PEPPER)
    revoked, kept = await admin.create_key("acme", "a"), await admin.create_key("acme", "b")
    await gateway.authenticate(revoked)
    await gateway.authenticate(kept)
    refresh = asyncio.create_task(gateway.refresh_forever())
    await admin.revoke_key(parse_key(revoked))
    async with asyncio.timeout(5):
        while True:
            try:
                await gateway.authenticate(revoked)
            except InvalidApiKey:
                break
            await asyncio.sleep(0.01)
    await gateway.authenticate(kept)
    refresh.cancel()
    with pytest.raises(NotFound):
        await admin.revoke_key("0" * 12)


async def test_known_keys_outlive_redis_and_unknown_ones_need_it(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as client:
        store = KeyStore(client, PEPPER, refresh_s=0.02)
        seen, unseen = await store.create_key("acme", "a"), await store.create_key("acme", "b")
        await store.authenticate(seen)
        refresh = asyncio.create_task(store.refresh_forever())
        redis_server.kill()
        with pytest.raises(DependencyDown):
            await store.refresh()
        started = asyncio.get_running_loop().time()
        assert (await store.authenticate(seen)).name == "acme"
        with pytest.raises(DependencyDown, match="Redis does not answer"):
            await store.authenticate(unseen)
        assert asyncio.get_running_loop().time() - started < 1.0
        redis_server.start()
        assert (await store.find(unseen)).name == "b"
        assert not refresh.done()
        refresh.cancel()


async def test_an_emptied_redis_is_an_outage_not_the_end_of_all_keys(redis: Redis) -> None:
    store = KeyStore(redis, PEPPER)
    key, unseen = await store.create_key("acme", "a"), await store.create_key("acme", "b")
    await store.authenticate(key)
    await redis.flushall()
    with pytest.raises(DependencyDown, match="emptied"):
        await store.refresh()
    await store.authenticate(key)
    with pytest.raises(DependencyDown, match="emptied"):
        await store.authenticate(unseen)


@pytest.mark.parametrize(
    ("field", "value"), [("priority_class", "high"), ("priority_class", "16"), ("cache_salt", "no hex")]
)
async def test_a_malformed_tenant_stops_its_own_keys_only(redis: Redis, field: str, value: str) -> None:
    store = KeyStore(redis, PEPPER)
    spoilt, healthy = await store.create_key("spoilt", "k"), await store.create_key("healthy", "k")
    assert (await store.authenticate(spoilt)).name == "spoilt"
    assert (await store.authenticate(healthy)).name == "healthy"
    await redis.hset("stratos:tenant:spoilt", field, value)
    await store.refresh()
    with pytest.raises(InvalidApiKey):
        await store.authenticate(spoilt)
    assert (await store.authenticate(healthy)).name == "healthy"


async def test_the_snapshot_is_bounded(redis: Redis) -> None:
    store = KeyStore(redis, PEPPER, max_known=2)
    keys = [await store.create_key("acme", str(i)) for i in range(4)]
    for key in keys:
        await store.authenticate(key)
    assert len(store._known) == 2
    assert (await store.find(keys[0])).name == "0"


async def test_bad_input_is_refused(redis: Redis) -> None:
    with pytest.raises(BadRequest, match="at least 16"):
        KeyStore(redis, "short")
    for tenant in ("", "Acme", "a:b", "x" * 65, "a\n"):
        with pytest.raises(BadRequest, match="tenant"):
            await KeyStore(redis, PEPPER).create_key(tenant, "k")
