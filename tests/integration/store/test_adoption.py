"""A store gets its id once, and an emptied Redis is filled again from the object store and from copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, DependencyDown, InvalidApiKey
from stratos.core.adapter import Adapter
from stratos.store.keys import parse_key
from stratos.store.models.forms import model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.adoption import adopt_store, export_store, init_store
from stratos.store.records.copy_keeper import CopyKeeper
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.records.manifest import IN_MANIFEST
from stratos.store.records.record import Kind, make_body, parse_record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import SnapshotConfig
from stratos.store.records.snapshot_copy import load_copy, save_copy
from stratos.store.records.values import encode_adapter
from stratos.store.redis import open_redis
from tests.support.reference.published_models import FACTS
from tests.support.servers.record_stores import MarkedStore, following, manifests_in, marked_store
from tests.support.servers.redis_server import RedisServer, redis_cluster
from tests.support.waiting import eventually


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as client:
        yield await marked_store(client, tmp_path / "objects")


async def add_adapter(store: MarkedStore, name: str, *, is_deleted: bool = False) -> None:
    adapter = Adapter(
        tenant="", name=name, base_model_digest="b" * 64, uri=f"adapters/{name}", digest="d" * 64, rank=2, alpha=4.0,
        target_modules=("q_proj",), num_bytes=1, created_unix_s=1,
    )  # fmt: skip
    body = make_body(encode_adapter(adapter))
    version = await store.records.write(Kind.ADAPTER, f"/{name}", body, seen=0)
    if is_deleted:
        body = make_body({}, is_deleted=True)
        version = await store.records.write(Kind.ADAPTER, f"/{name}", body, seen=version)
    await store.manifests.add(store.store_id, [parse_record(Kind.ADAPTER, f"/{name}", f"{version} {body}")])


async def test_an_id_is_drawn_once(store: MarkedStore, tmp_path: Path) -> None:
    assert await init_store(store.records, store.manifests) == store.store_id
    manifest = await store.manifests.read()
    assert manifest is not None
    assert manifest.store_id == store.store_id
    await store.redis.flushall()
    assert await init_store(store.records, manifests_in(tmp_path / "other")) != store.store_id


async def test_an_object_store_that_names_an_id_keeps_it(store: MarkedStore) -> None:
    await add_adapter(store, "one")
    await add_adapter(store, "gone", is_deleted=True)
    await store.redis.flushall()
    assert await init_store(store.records, store.manifests) == store.store_id
    records = {record.id: record.is_deleted for record in await store.records.records(Kind.ADAPTER)}
    assert records == {"/one": False, "/gone": True}


async def test_models_come_back_from_the_object_store_with_their_terms(store: MarkedStore) -> None:
    record = ModelRecord(
        name="small", digest="d" * 64, text_digest="b" * 64, source=f"registry:small@{'d' * 64}", size="8b", facts=FACTS
    )
    record_id = model_id("small", record.digest)
    body = make_body(model_to_json(record))
    await store.records.write(Kind.MODEL, record_id, body, seen=0)
    await store.manifests.add(store.store_id, await store.records.records(*IN_MANIFEST))
    await store.redis.flushall()
    assert await init_store(store.records, store.manifests) == store.store_id
    [found] = await store.records.records(Kind.MODEL)
    assert (found.id, found.value) == (record_id, record)


async def test_a_redis_and_an_object_store_of_different_stores_are_not_married(
    store: MarkedStore, tmp_path: Path
) -> None:
    other = manifests_in(tmp_path / "other")
    await other.add("f" * 32, ())
    with pytest.raises(DependencyDown, match="another store"):
        await init_store(store.records, other)


async def test_the_drill_on_records(store: MarkedStore, redis_url: str, tmp_path: Path) -> None:
    revoked, kept = [await store.keys.create_key("acme", name) for name in "ab"]
    await add_adapter(store, "one")
    exported = await export_store(store.records, unix_s=0.0)  # before the revocation: a gateway's copy knows better
    async with following(redis_url) as gateway:
        keeper = CopyKeeper(gateway.follower, tmp_path / "copies" / "gateway.jsonl", 60.0)
        await store.keys.revoke_key(parse_key(revoked))
        await add_adapter(store, "gone", is_deleted=True)
        assert await gateway.follower.catch_up()
        await keeper.save()
        await store.redis.flushall()
        await eventually(lambda: gateway.snapshot.state is SnapshotState.FOREIGN, "the loss is seen")
        with pytest.raises(DependencyDown):
            await store.keys.create_key("late", "c")
        copy = load_copy(tmp_path / "copies" / "gateway.jsonl")
        assert copy is not None
        adoption = await adopt_store(store.records, store.manifests, [exported, copy])
        assert adoption.store_id == store.store_id
        assert adoption.num_live == {Kind.TENANT: 1, Kind.KEY: 1, Kind.ADAPTER: 1}
        assert adoption.num_tombstones == 2
        await eventually(lambda: gateway.follower.is_following, "the store is followed again")
        late = await store.keys.create_key("late", "c")
        async with following(redis_url) as newcomer:
            for process in (gateway, newcomer):
                assert (await process.keys.authenticate(kept)).name == "acme"
                await process.keys.authenticate(late)
                with pytest.raises(InvalidApiKey):
                    await process.keys.authenticate(revoked)
                adapters = process.snapshot.of_owner(Kind.ADAPTER, "")
                assert {name: record.is_deleted for name, record in adapters.items()} == {"one": False, "gone": True}
            assert newcomer.snapshot.num_records() == gateway.snapshot.num_records()


async def test_a_strange_redis_is_taken_over_only_on_demand(store: MarkedStore, redis_url: str, tmp_path: Path) -> None:
    key = await store.keys.create_key("acme", "a")
    exported = await export_store(store.records, unix_s=0.0)
    await store.redis.flushall()
    strange = await marked_store(store.redis, tmp_path / "strange")
    strangers = [await strange.keys.create_key(tenant, "b") for tenant in ("stranger", "acme")]
    with pytest.raises(DependencyDown, match="--replace"):
        await adopt_store(store.records, store.manifests, [exported])
    await adopt_store(store.records, store.manifests, [exported], replaces=True)
    async with following(redis_url) as gateway:
        assert gateway.snapshot.store_id == store.store_id
        await gateway.keys.authenticate(key)
        assert gateway.snapshot.num_records() == 2, "the key and its tenant; nothing is left of the strangers"
        for stranger in strangers:
            with pytest.raises(InvalidApiKey):
                await gateway.keys.authenticate(stranger)


async def test_what_cannot_be_adopted_is_told(store: MarkedStore, tmp_path: Path) -> None:
    exported = await export_store(store.records, unix_s=0.0)
    await store.redis.flushall()
    with pytest.raises(BadRequest, match="no manifest and no copy"):
        await adopt_store(store.records, manifests_in(tmp_path / "empty"))
    other = manifests_in(tmp_path / "other")
    await other.add("f" * 32, ())
    with pytest.raises(BadRequest, match="several stores"):
        await adopt_store(store.records, other, [exported])
    with pytest.raises(DependencyDown, match="adopt-store"):
        await export_store(store.records, unix_s=0.0)
    assert await store.redis.keys() == []


async def test_a_restarted_gateway_serves_from_its_copy_while_redis_is_away(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "copies" / "gateway.jsonl"
    async with open_redis(redis_server.url) as client:
        store = await marked_store(client, tmp_path / "objects")
        revoked, kept = [await store.keys.create_key("acme", name) for name in "ab"]
        await store.keys.revoke_key(parse_key(revoked))
        async with following(redis_server.url) as gateway:
            await CopyKeeper(gateway.follower, path, 60.0).save()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    content = path.read_text()
    assert kept.rpartition("-")[2] not in content
    redis_server.kill()
    async with following(redis_server.url, SnapshotConfig(poll_s=0.02)) as restarted:
        assert restarted.follower.not_ready_reason()
        CopyKeeper(restarted.follower, path, 60.0).restore()
        assert not restarted.follower.not_ready_reason()
        assert restarted.follower.age_s < 60.0
        assert (await restarted.keys.authenticate(kept)).name == "acme"
        with pytest.raises(InvalidApiKey):
            await restarted.keys.authenticate(revoked)
        redis_server.start()
        await eventually(lambda: restarted.follower.is_following, "the store is followed")


@pytest.mark.parametrize("fault", ["shortened", "readable by others", "no copy"])
async def test_a_copy_that_cannot_be_trusted_is_not_used(
    store: MarkedStore, redis_url: str, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "copy.jsonl"
    await store.keys.create_key("acme", "a")
    save_copy(await export_store(store.records, unix_s=0.0), path)
    if fault == "shortened":
        path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    elif fault == "readable by others":
        path.chmod(0o644)
    else:
        path.write_text("{}")
    with pytest.raises(BadRequest):
        load_copy(path)
    await store.redis.flushall()
    async with following(redis_url) as gateway:
        CopyKeeper(gateway.follower, path, 60.0).restore()
        assert gateway.follower.not_ready_reason()
    assert "is not used" in caplog.text


async def test_redis_cluster_is_refused(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as url:
        async with open_redis(url) as client:
            with pytest.raises(BadRequest, match="Redis Cluster is not supported"):
                await init_store(RecordStore(client), manifests_in(tmp_path / "objects"))
