"""Data keys of tenants in a real Redis: made with a tenant, gone with it, wrapped again, and in no restored backup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from stratos.common.errors import DependencyDown, InvalidApiKey
from stratos.store.content.forms import template_from_json
from stratos.store.data_keys import DataKeyRecord, PlatformKeys, Purpose
from stratos.store.key_store import KeyStore
from stratos.store.records.adoption import adopt_store, export_store
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.deletion import delete_tenant
from stratos.store.tenancy.sub_keys import SubKeys
from stratos.store.tenancy.tenant_keyring import TenantKeyring
from stratos.store.tenants import adapter_scope
from stratos_gateway.access import data_keys
from stratos_gateway.access.data_keys import MissingDataKeys
from stratos_gateway.access.departed_tenants import living_tenants
from stratos_gateway.admin.content_records import ContentRecords
from tests.support.servers.record_stores import PEPPERS, Follower, MarkedStore, following, marked_store
from tests.support.waiting import eventually

OLD = PlatformKeys(current=bytes(range(32)))
NEW = PlatformKeys(current=bytes(range(1, 33)), current_id="2", older={"1": OLD.current})


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as client:
        yield await marked_store(client, tmp_path / "objects")


@pytest.fixture
async def gateway(redis_url: str, store: MarkedStore) -> AsyncIterator[Follower]:
    async with following(redis_url) as found:
        yield found


def writer(store: MarkedStore) -> RecordWriter:
    return RecordWriter(store.records, actor="key:ops")


async def wrapping_keys(store: MarkedStore) -> dict[str, str]:
    """The id of the platform key by the id of the tenant."""
    found = await store.records.records(Kind.DATA_KEY)
    return {record.id: record.value.platform_key_id for record in found if isinstance(record.value, DataKeyRecord)}


def keys(store: MarkedStore, platform: PlatformKeys = OLD) -> KeyStore:
    return KeyStore(writer(store), PEPPERS, platform=platform)


async def wrapped_in_redis(store: MarkedStore) -> str:
    """Everything that Redis holds, as text."""
    found = []
    for name in await store.redis.keys():
        kind = await store.redis.type(name)
        read = {"hash": store.redis.hgetall, "stream": store.redis.xrange}.get(kind, store.redis.get)
        found.append(str(await read(name)))
    return "\n".join(found)


async def test_a_tenant_has_a_key_from_its_beginning_to_its_end(store: MarkedStore, gateway: Follower) -> None:
    await keys(store).create_key("acme", "k")
    await keys(store).tenants.put("other", plan="standard", overrides={}, is_suspended=False)
    assert await gateway.follower.catch_up()
    acme, other = [(await keys(store).tenants.get(name)).id for name in ("acme", "other")]
    found = SubKeys(gateway.follower, OLD)
    subs = {found.find(tenant, purpose) for tenant in (acme, other) for purpose in Purpose}
    assert len(subs) == 2 * len(Purpose)
    assert None not in subs
    await keys(store).tenants.suspend("acme", is_suspended=True)
    await keys(store).create_key("acme", "more")
    assert await gateway.follower.catch_up()
    assert found.find(acme, Purpose.STREAM_RECORDS) in subs, "a change of the tenant leaves its key"

    record = gateway.snapshot.get(Kind.DATA_KEY, acme)
    assert record is not None
    assert record.value is not None
    wrapped = record.value.wrapped.hex()  # type: ignore[union-attr]
    assert wrapped in await wrapped_in_redis(store)
    await delete_tenant(writer(store), "acme")
    assert await gateway.follower.catch_up()
    assert len(found) == len(Purpose), "those of the other one, though no request asks for the rest any more"
    assert found.find(acme, Purpose.STREAM_RECORDS) is None
    assert found.find(other, Purpose.STREAM_RECORDS) in subs
    assert wrapped not in await wrapped_in_redis(store), "neither the record nor the changes have it"
    again = await keys(store).create_key("acme", "next")
    assert await gateway.follower.catch_up()
    next_id = (await gateway.keys.authenticate(again)).id
    assert found.find(next_id, Purpose.STREAM_RECORDS) not in {None, *subs}
    assert not await TenantKeyring(writer(store), OLD).make((await keys(store).tenants.get("acme")).ref), "it has one"


@asynccontextmanager
async def making_missing_keys(store: MarkedStore, follower: SnapshotFollower) -> AsyncIterator[SubKeys]:
    living = partial(living_tenants, follower)
    missing = MissingDataKeys(store.records, OLD, follower, living, lambda: store.store_id)
    task = asyncio.create_task(missing.run())
    yield SubKeys(follower, OLD)
    task.cancel()


async def test_gateways_make_the_data_key_of_a_command_s_tenant_at_once(
    redis_url: str, store: MarkedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_keys, "_INTERVAL_S", 3600.0)
    async with AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(following(redis_url)) for _ in range(2)]
        subs = [await stack.enter_async_context(making_missing_keys(store, one.follower)) for one in gateways]

        async def made_for(name: str) -> str:
            await store.keys.create_key(name, "k")  # by a command that has no platform key
            tenant = (await store.keys.tenants.get(name)).id
            await eventually(lambda: all(sub.find(tenant, Purpose.STREAM_RECORDS) for sub in subs), f"a key of {name}")
            assert len({sub.find(tenant, Purpose.STREAM_RECORDS) for sub in subs}) == 1
            return tenant

        await made_for("acme")
        await delete_tenant(writer(store), "acme")
        other = await made_for("other")
        assert set(await wrapping_keys(store)) == {other}, "and none of a tenant that is gone"


async def test_a_new_platform_key_wraps_the_same_keys_again(store: MarkedStore, gateway: Follower) -> None:
    for name in ("acme", "other"):
        await keys(store).create_key(name, "k")
    assert await gateway.follower.catch_up()
    ids = [(await keys(store).tenants.get(name)).id for name in ("acme", "other")]
    before = [SubKeys(gateway.follower, OLD).find(tenant, Purpose.KV_ON_DISK) for tenant in ids]
    texts = [record.text for record in await store.records.records(Kind.DATA_KEY)]
    assert await TenantKeyring(writer(store), NEW).rewrap() == 2
    assert await TenantKeyring(writer(store), NEW).rewrap() == 0
    assert await gateway.follower.catch_up()
    alone = PlatformKeys(current=NEW.current, current_id="2")
    assert [SubKeys(gateway.follower, alone).find(tenant, Purpose.KV_ON_DISK) for tenant in ids] == before
    assert [SubKeys(gateway.follower, OLD).find(tenant, Purpose.KV_ON_DISK) for tenant in ids] == [None, None]
    whole = await wrapped_in_redis(store)
    assert not any(text.partition('"wrapped":"')[2][:40] in whole for text in texts), "nothing under the old key stays"
    assert set((await wrapping_keys(store)).values()) == {"2"}
    with pytest.raises(DependencyDown, match="not set here"):
        await TenantKeyring(writer(store), PlatformKeys(current=bytes(32), current_id="3")).rewrap()


async def test_a_backup_from_before_a_deletion_brings_neither_the_tenant_nor_its_keys_back(store: MarkedStore) -> None:
    old = await keys(store).create_key("acme", "k")
    other = await keys(store).create_key("other", "k")
    content, tenants = ContentRecords(writer(store)), keys(store).tenants
    for owner in ("acme", "other"):
        await content.put_template(f"{owner}/greet", template_from_json("greet", {"versions": {"1": {"text": "Hi"}}}))
        await tenants.block(f"{adapter_scope(owner)}/tone", "seen")
    backup = await export_store(store.records, 0.0)
    gone = await delete_tenant(writer(store), "acme")
    new = await keys(store).create_key("acme", "next")
    # What the registry does every half minute; the next tenant of the name is in no copy.
    await store.manifests.add(store.store_id, await store.records.records(Kind.ADAPTER, Kind.DATA_KEY))
    await store.redis.flushall()
    await adopt_store(store.records, store.manifests, [backup])
    assert [tenant.name for tenant in await keys(store).tenants.list()] == ["other"]
    assert [key.tenant for key in await keys(store).list_keys()] == ["other"]
    assert gone.id not in await wrapping_keys(store)
    assert list(await content.templates()) == ["other/greet"], "the next tenant of the name sees none of its texts"
    blocks = await store.records.records(Kind.BLOCK)
    assert [record.id for record in blocks if not record.is_deleted] == [f"{adapter_scope('other')}/tone"]
    options = store.redis.connection_pool.connection_kwargs
    async with following(f"redis://{options['host']}:{options['port']}") as fresh:
        assert (await fresh.keys.authenticate(other)).name == "other"
        for key in (old, new):
            with pytest.raises(InvalidApiKey):
                await fresh.keys.authenticate(key)
    await tenants.ensure("acme")
    namesakes = [(await tenants.get(name)).is_namesake for name in ("other", "acme")]
    assert namesakes == [False, True], "tokens of the departed customer name it"


async def test_the_platform_key_is_in_no_record_and_in_no_backup(store: MarkedStore, tmp_path: Path) -> None:
    await keys(store).create_key("acme", "k")
    whole = await wrapped_in_redis(store)
    backup = str((await export_store(store.records, 0.0)).records[0].text)
    for text in (whole, backup, *(path.read_text() for path in (tmp_path / "objects").rglob("*.json"))):
        assert OLD.current.hex() not in text
