"""The registry beside stores that are not as they were: another clock, a right that is gone, a late put."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from stratos.common.background import end_tasks
from stratos.store.records.followed_snapshot import Marker
from stratos.store.records.manifest import MANIFEST_KEY
from stratos.store.records.record import Kind, make_body
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos_lora_registry.catalogue import AdapterCatalogue
from stratos_lora_registry.registrar import Registrar, RegistrarConfig
from tests.support.reference.adapter_folders import BASE_DIGEST, write_adapter
from tests.support.servers.record_stores import MarkedStore, marked_store
from tests.support.waiting import eventually

AHEAD_US = 30_000_000


class AheadStore(RecordStore):
    """Store on a master whose clock is ahead of that of its replica."""

    async def now_us(self) -> int:
        return await super().now_us() + AHEAD_US


class RefusingStore(RecordStore):
    """Refuses to read."""

    num_asked = 0

    async def require_marker(self, store_id: str = "") -> Marker:
        self.num_asked += 1
        raise ResponseError("NOPERM this user has no permissions to run the 'hmget' command")


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as redis:
        yield await marked_store(redis, tmp_path / "store")


async def test_a_name_is_registered_and_deleted_after_a_failover_to_a_clock_that_is_behind(
    store: MarkedStore, tmp_path: Path
) -> None:
    objects = open_store(ObjectStoreConfig(url=f"file://{tmp_path / 'store'}"))
    ahead = AheadStore(store.redis)

    async def register(records: RecordStore, uri: str) -> None:
        registrar = Registrar(AdapterCatalogue(records, store.manifests), objects, RegistrarConfig(), lambda: 1.0)
        await registrar.register(tenant="", name="chat", base_model_digest=BASE_DIGEST, uri=uri)

    for fill, name in enumerate(("one", "two"), 1):
        write_adapter(tmp_path / "store" / name, fill=fill)
    await register(ahead, "one")
    # A gateway that has seen more lets the store count on.
    await store.records.count_on(await store.records.require_marker(), await ahead.now_us())
    await register(store.records, "two")
    catalogue = AdapterCatalogue(store.records, store.manifests)
    assert [adapter.uri for adapter in await catalogue.list("")] == ["two"]
    await catalogue.delete("", "chat")
    assert await catalogue.list("") == []


async def test_what_redis_refuses_does_not_end_the_keeper_of_the_manifest(store: MarkedStore) -> None:
    records = RefusingStore(store.redis)
    keeper = asyncio.create_task(AdapterCatalogue(records, store.manifests).keep_manifest_forever())
    await eventually(lambda: records.num_asked)
    await asyncio.sleep(0)
    assert not keeper.done(), "the process ends with it"
    await end_tasks([keeper])


async def test_a_late_put_takes_nothing_out_of_the_manifest_for_good(store: MarkedStore, tmp_path: Path) -> None:
    """One whose caller has given up lands behind a later one."""
    path, catalogue = tmp_path / "store" / MANIFEST_KEY, AdapterCatalogue(store.records, store.manifests)
    body, model = make_body({"text_digest": "b" * 64}), f"small/{'d' * 64}"
    before = path.read_bytes()
    await store.records.write(Kind.MODEL, model, body, seen=0)
    await catalogue.check_manifest()
    path.write_bytes(before)
    for _ in range(2):
        await catalogue.check_manifest()
        manifest = await store.manifests.read()
        assert manifest is not None
        assert set(manifest.models) == {model}
