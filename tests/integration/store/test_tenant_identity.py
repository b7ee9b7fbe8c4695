"""A tenant is who it is by its id: what its keys do while it is deleted, and what the next one of its name sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, InvalidApiKey, NotFound
from stratos.store.key_store import KeyStore
from stratos.store.keys import parse_key
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.tenant_lookup import TenantLookup
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.deletion import delete_tenant
from stratos.store.tenants import TenantRef, block_id, tenant_id
from tests.support.servers.record_stores import PEPPERS, Follower, MarkedStore, following, marked_store


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as client:
        yield await marked_store(client, tmp_path / "objects")


@pytest.fixture
async def gateway(redis_url: str, store: MarkedStore) -> AsyncIterator[Follower]:
    async with following(redis_url) as found:
        yield found


def admin(store: MarkedStore) -> RecordWriter:
    return RecordWriter(store.records, actor="key:ops")


class NoLists(RecordStore):
    """A connection that is lost at the first list."""

    async def records(self, *kinds: Kind) -> list[Record]:
        raise ConnectionError


async def owner(store: MarkedStore, gateway: Follower) -> KeyStore:
    """What a tenant-admin of acme writes with, from now on for good."""
    key = await store.keys.create_key("acme", "owner")
    assert await gateway.follower.catch_up()
    who = await gateway.keys.authenticate(key)
    return KeyStore(RecordWriter(store.records, actor=who.actor, within=TenantRef(who.name, who.id)), PEPPERS)


async def refused(gateway: Follower, key: str) -> str:
    assert await gateway.follower.catch_up()
    with pytest.raises(InvalidApiKey) as found:
        await gateway.keys.authenticate(key)
    return found.value.message


async def come_back(store: MarkedStore, own: KeyStore) -> list[str]:
    """What is there, or has changed, once its owner has tried all it can after the deletion."""
    old = (await own.list_keys())[0].key_id
    await delete_tenant(admin(store), "acme")
    before, found = await store.redis.hgetall("stratos:key"), []
    writes = {
        "a key": own.create_key("acme", "stray", makes_tenant=False),
        "a resumed key": own.suspend_key(old, is_suspended=False),
        "a rotated key": own.rotate_key(old, overlap_s=60),
        "a key with a tenant": own.create_key("acme", "stray"),  # a tenant is made by the platform alone
    }
    for name, write in writes.items():
        with suppress(NotFound):
            await write
            found.append(name)
    found += [tenant.name for tenant in await store.keys.tenants.list()]
    return found + ["keys"] * (before != await store.redis.hgetall("stratos:key"))


async def test_a_deleted_tenant_does_not_come_back_by_its_own_key(store: MarkedStore, gateway: Follower) -> None:
    assert await come_back(store, await owner(store, gateway)) == []


async def test_an_owner_whose_writes_have_no_condition_is_found(store: MarkedStore, gateway: Follower) -> None:
    """The defect that the test before is there for, planted: what is written is bound to no live tenant."""
    await owner(store, gateway)
    unbound = KeyStore(RecordWriter(store.records, actor="key:owner"), PEPPERS)
    assert await come_back(store, unbound) == ["a key with a tenant", "acme", "keys"]


async def test_the_keys_of_a_deleted_tenant_write_nothing_into_the_next_one_of_its_name(
    store: MarkedStore, gateway: Follower
) -> None:
    own = await owner(store, gateway)
    await delete_tenant(admin(store), "acme")
    await store.keys.create_key("acme", "new owner")
    with pytest.raises(NotFound):
        await own.create_key("acme", "stray", makes_tenant=False)
    assert [key.name for key in await store.keys.list_keys() if not key.disabled] == ["new owner"]


async def test_a_deletion_takes_what_is_written_while_it_runs(store: MarkedStore, gateway: Follower) -> None:
    """Writers that do not pause, and the deletion in their midst: none of what they wrote is left."""
    own, made = await owner(store, gateway), list[str]()

    async def write() -> None:
        for _ in range(100):
            try:
                made.append(await own.create_key("acme", "stray", makes_tenant=False))
                await store.keys.tenants.block(block_id("a", "acme"), "abuse")
            except NotFound:
                return

    writers = [asyncio.create_task(write()) for _ in range(8)]
    while len(made) < 20:  # noqa: ASYNC110 - they write as fast as Redis answers
        await asyncio.sleep(0)
    await delete_tenant(admin(store), "acme")
    await asyncio.gather(*writers)
    assert len(made) < 800, "the deletion stopped them"
    assert [key for key in await store.keys.list_keys() if not key.disabled] == []
    assert [block for block in await store.records.records(Kind.BLOCK) if not block.is_deleted] == []
    again = await store.keys.create_key("acme", "new owner")
    assert await gateway.follower.catch_up()
    assert (await gateway.keys.authenticate(again)).name == "acme"
    assert "not known" in await refused(gateway, made[-1])


async def test_a_key_works_for_the_tenant_that_it_was_made_for_alone(
    store: MarkedStore, gateway: Follower, redis_url: str
) -> None:
    key = await store.keys.create_key("acme", "k")
    text = await store.redis.hget("stratos:key", parse_key(key))
    await delete_tenant(admin(store), "acme")
    await store.keys.create_key("acme", "next")
    # As if the deletion had missed it.
    await store.records.write(Kind.KEY, parse_key(key), text.partition(" ")[2], seen=await version(store, key))
    async with following(redis_url) as fresh:
        assert "deleted" in await refused(fresh, key)


async def version(store: MarkedStore, key: str) -> int:
    return int((await store.redis.hget("stratos:key", parse_key(key))).partition(" ")[0])


async def test_a_closing_tenant_is_refused_and_its_deletion_ends_when_it_is_asked_for_again(
    store: MarkedStore, gateway: Follower
) -> None:
    key = await store.keys.create_key("acme", "k")
    tenant = await store.keys.tenants.get("acme")
    with pytest.raises(ConnectionError):
        await delete_tenant(RecordWriter(NoLists(store.redis), actor="key:ops"), "acme")
    assert "deleted" in await refused(gateway, key)
    for write in (
        store.keys.tenants.put("acme", plan="premium", overrides={}, is_suspended=False),
        store.keys.tenants.suspend("acme", is_suspended=True),
        store.keys.create_key("acme", "again"),
    ):
        with pytest.raises(BadRequest, match="being deleted"):
            await write
    assert await delete_tenant(admin(store), "acme") == tenant.ref
    assert await store.keys.tenants.list() == []
    with pytest.raises(NotFound):
        await delete_tenant(admin(store), "acme")


async def test_two_deletions_at_once_are_one_and_spare_the_next_tenant(store: MarkedStore, gateway: Follower) -> None:
    for number in range(20):
        await store.keys.create_key("acme", f"k{number}")
    found = await asyncio.gather(*(delete_tenant(admin(store), "acme") for _ in range(4)))
    assert len(set(found)) == 1
    key = await store.keys.create_key("acme", "next")
    assert await gateway.follower.catch_up()
    assert (await gateway.keys.authenticate(key)).id != found[0].id


async def test_a_store_from_before_ids_goes_on_and_its_tenants_get_theirs(
    store: MarkedStore, gateway: Follower
) -> None:
    key, other = await store.keys.create_key("acme", "k"), await store.keys.create_key("acme", "l")
    for kind, record_id, field in ((Kind.TENANT, "acme", "id"), (Kind.KEY, parse_key(key), "tenant_id")):
        text = await store.redis.hget(f"stratos:{kind.value}", record_id)
        body = json.loads(text.partition(" ")[2])
        del body["value"][field]
        await store.records.write(kind, record_id, json.dumps(body), seen=int(text.partition(" ")[0]))
    assert await gateway.follower.catch_up()
    who, same = [await gateway.keys.authenticate(k) for k in (key, other)]
    assert who.id == same.id == tenant_id(who.cache_salt)
    tenant = await store.keys.tenants.get("acme")
    assert tenant.is_legacy
    assert {k.key_id for k in await store.keys.list_keys() if k.is_shown_to(tenant)} == {
        parse_key(key),
        parse_key(other),
    }
    await store.keys.tenants.suspend("acme", is_suspended=True)
    assert (await store.keys.tenants.get("acme")).is_legacy, "a change does not make its older keys strangers"
    await store.keys.suspend_key(parse_key(key), is_suspended=True)
    await store.keys.revoke_key(parse_key(key))
    await delete_tenant(admin(store), "acme")
    await store.keys.create_key("acme", "next")
    assert not (await store.keys.tenants.get("acme")).is_legacy
    following = await store.keys.tenants.get("acme")
    assert [k.name for k in await store.keys.list_keys() if k.is_shown_to(following)] == ["next"]


@pytest.mark.parametrize("is_declared", [False, True])
async def test_a_tenant_of_a_name_that_another_one_had_is_known_as_such(
    store: MarkedStore, gateway: Follower, is_declared: bool
) -> None:
    tenants, lookup = store.keys.tenants, TenantLookup(gateway.follower)
    first = await tenants.ensure("acme")
    assert not (await tenants.get("acme")).is_namesake
    await delete_tenant(admin(store), "acme")
    if is_declared:
        await tenants.put("acme", plan="standard", overrides={}, is_suspended=False)
    else:
        await tenants.ensure("acme")
    await tenants.set_plan("acme", "premium")
    assert await gateway.follower.catch_up()  # it may have seen the first one, and looks again in a while
    found = await lookup.find((await tenants.get("acme")).name)
    assert found is not None
    assert (found.is_namesake, found.id != first.id) == (True, True)
    assert await lookup.find_id(found.id) == found
    assert await lookup.find_id(first.id) is None
    other = await tenants.ensure("other")
    fresh = await lookup.find_id(other.id)
    assert fresh is not None, "an id that the snapshot lacks is looked for in the store"
    assert (fresh.name, fresh.is_namesake) == ("other", False)
