"""Registration against a real Redis and a local object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from stratos.common.errors import BadRequest, DependencyDown, InvalidAdapter, ModelNotFound, NotFound, Overloaded
from stratos.core.adapter import Adapter
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.store.models.forms import model_id
from stratos.store.object_store import ObjectInfo, ObjectStore
from stratos.store.records.manifest import MANIFEST_KEY
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos_lora_registry.catalogue import MAX_FORMER, AdapterCatalogue
from stratos_lora_registry.registrar import Registrar, RegistrarConfig
from tests.support.reference.adapter_folders import BASE_DIGEST, BREAKAGES, WEIGHTS, write_adapter
from tests.support.servers.record_stores import MarkedStore, marked_store


class World:
    def __init__(self, store: MarkedStore, folder: Path) -> None:
        self.redis, self.manifests = store.redis, store.manifests
        self.root = folder / "store"
        self.work = folder / "work"
        self.work.mkdir()
        self.now = 1000.0
        self.catalogue = AdapterCatalogue(store.records, store.manifests)
        self.store_config = ObjectStoreConfig(url=f"file://{self.root}")
        self.registrar = self.make_registrar(open_store(self.store_config))

    def make_registrar(self, store: ObjectStore, **config: int) -> Registrar:
        full = RegistrarConfig(work_folder=self.work, **config)
        return Registrar(self.catalogue, store, full, lambda: self.now)

    async def register(self, name: str = "one", uri: str = "adapters/one", tenant: str = "") -> Adapter:
        return await self.registrar.register(tenant=tenant, name=name, base_model_digest=BASE_DIGEST, uri=uri)

    async def is_untouched(self) -> bool:
        return not await self.redis.exists("stratos:adapter") and not any(self.work.iterdir())


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_redis(redis_url) as redis:
        yield World(await marked_store(redis, tmp_path / "store"), tmp_path)


async def test_a_valid_adapter_is_described_by_its_files(world: World) -> None:
    files = read_adapter_files(write_adapter(world.root / "adapters" / "one", rank=2, alpha=4))
    adapter = await world.register(uri="adapters/one/")
    assert adapter == Adapter(
        tenant="", name="one", base_model_digest=BASE_DIGEST, uri="adapters/one", digest=files.digest, rank=2,
        alpha=4.0, target_modules=("q_proj",), num_bytes=files.num_bytes, created_unix_s=1000,
    )  # fmt: skip
    assert await world.catalogue.list("") == [adapter]
    assert not any(world.work.iterdir())


async def test_the_same_content_gives_the_same_answer_later_too(world: World) -> None:
    write_adapter(world.root / "adapters" / "one")
    first = await world.register()
    world.now += 500
    assert await world.register() == first
    assert await world.redis.hlen("stratos:adapter") == 1


async def test_content_that_moved_is_found_at_its_new_place(world: World) -> None:
    write_adapter(world.root / "adapters" / "one")
    first = await world.register()
    (world.root / "adapters" / "one").rename(world.root / "adapters" / "moved")
    second = await world.register(uri="adapters/moved")
    assert (second.uri, second.digest, second.created_unix_s) == ("adapters/moved", first.digest, first.created_unix_s)
    assert await world.catalogue.list("") == [second]


async def test_other_content_under_the_same_name_becomes_what_the_name_means(world: World) -> None:
    folder = write_adapter(world.root / "adapters" / "one", fill=1)
    first = await world.register()
    write_adapter(folder, fill=2)
    second = await world.register()
    assert second.digest != first.digest
    assert await world.catalogue.list("acme") == await world.catalogue.list("") == [second]
    assert second.former == (first.version,)
    write_adapter(folder, fill=1)
    back = await world.register()
    assert (back.version, back.former) == (first.version, (second.version,))


async def test_a_name_keeps_its_last_versions_and_goes_back_to_none_whose_files_have_changed(world: World) -> None:
    made = []
    for number in range(MAX_FORMER + 2):
        write_adapter(world.root / "adapters" / str(number), fill=number)
        made.append((await world.register(uri=f"adapters/{number}")).version)
    [now] = await world.catalogue.list("")
    assert now.former == tuple(reversed(made[1:-1]))
    write_adapter(world.root / "adapters" / "3", fill=99)
    common = {"tenant": "", "name": "one", "base_model_digest": BASE_DIGEST}
    with pytest.raises(InvalidAdapter) as refused:
        await world.registrar.register(**common, uri=made[3].uri, digest=made[3].digest)
    assert refused.value.param == "digest"
    assert await world.catalogue.list("") == [now]
    back = await world.registrar.register(**common, uri=made[4].uri, digest=made[4].digest)
    assert back.version == made[4]
    assert back.former == (made[-1], *(version for version in now.former if version != made[4]))


async def test_tenants_see_their_own_and_the_common_ones_only(world: World) -> None:
    for number, name in enumerate(("common", "mine", "theirs")):
        write_adapter(world.root / "adapters" / name, fill=number)
    await world.register("common", "adapters/common")
    await world.register("mine", "adapters/mine", tenant="acme")
    await world.register("theirs", "adapters/theirs", tenant="other")
    assert [a.name for a in await world.catalogue.list("acme")] == ["common", "mine"]
    assert [a.name for a in await world.catalogue.list("")] == ["common"]
    answers = set()
    # Neither another tenant's nor a common one can be taken away, and both look like one that does not exist.
    for name in ("theirs", "common", "unknown"):
        with pytest.raises(ModelNotFound) as caught:
            await world.catalogue.delete("acme", name)
        answers.add(caught.value.message.replace(name, "X"))
    assert len(answers) == 1
    await world.catalogue.delete("other", "theirs")
    assert [a.name for a in await world.catalogue.list("other")] == ["common"]


async def test_a_tenants_own_adapter_hides_the_common_one_of_that_name(world: World) -> None:
    write_adapter(world.root / "a", fill=1)
    write_adapter(world.root / "b", fill=2)
    common, own = await world.register("x", "a"), await world.register("x", "b", tenant="acme")
    assert await world.catalogue.list("other") == [common]
    assert await world.catalogue.list("acme") == [own]
    await world.catalogue.delete("acme", "x")
    assert await world.catalogue.list("acme") == [common]


@pytest.mark.parametrize("kind", BREAKAGES)
async def test_a_broken_adapter_is_refused_and_leaves_nothing(world: World, kind: str) -> None:
    breakage, message = BREAKAGES[kind]
    breakage(write_adapter(world.root / "adapters" / "one"))
    with pytest.raises(InvalidAdapter) as caught:
        await world.register()
    assert message in caught.value.message
    assert caught.value.message.startswith("adapters/one")
    assert str(world.work) not in caught.value.message
    assert await world.is_untouched()


async def test_a_broken_upload_leaves_the_name_as_it_was(world: World) -> None:
    folder = write_adapter(world.root / "adapters" / "one")
    before = await world.register()
    (folder / WEIGHTS).write_bytes(b"broken")
    with pytest.raises(InvalidAdapter):
        await world.register()
    assert await world.catalogue.list("") == [before]


@pytest.mark.parametrize("uri", ["../secret", "/etc", "adapters/../../etc", "http://evil/x", "", "a\\b"])
async def test_a_uri_that_leaves_the_store_is_refused(world: World, uri: str) -> None:
    with pytest.raises(BadRequest, match="relative to the object store"):
        await world.register(uri=uri)
    assert await world.is_untouched()


async def test_a_missing_folder_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="no folder 'adapters/none'"):
        await world.register(uri="adapters/none")
    assert await world.is_untouched()


@pytest.mark.parametrize("name", ["", "Upper", "-x", ".x", "a/b", "a:b", "a b", "x" * 65, "x\n", "é", "base"])
async def test_a_bad_or_reserved_name_is_refused(world: World, name: str) -> None:
    write_adapter(world.root / "adapters" / "one")
    with pytest.raises(BadRequest) as caught:
        await world.register(name)
    assert caught.value.param == "name"
    assert await world.is_untouched()


async def test_the_name_of_a_recorded_model_is_refused_until_it_is_removed(world: World) -> None:
    write_adapter(world.root / "adapters" / "one")
    writer, model = RecordWriter(RecordStore(world.redis), actor="cli:test"), model_id("one", "c" * 64)
    await writer.change(Kind.MODEL, model, "model.add", lambda old: {"text_digest": "d" * 64})
    with pytest.raises(BadRequest, match="is a base model's") as caught:
        await world.register()
    assert caught.value.param == "name"
    assert await world.is_untouched()
    await writer.change(Kind.MODEL, model, "model.remove", lambda old: Tombstone({}))
    assert (await world.register()).name == "one"


async def test_the_name_of_a_model_that_is_added_while_weights_are_read_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_adapter(world.root / "adapters" / "one")
    writer, model = RecordWriter(RecordStore(world.redis), actor="cli:test"), model_id("one", "c" * 64)
    loop = asyncio.get_running_loop()

    def read(folder: Path) -> AdapterFiles:
        added = writer.change(Kind.MODEL, model, "model.add", lambda old: {"text_digest": "d" * 64})
        asyncio.run_coroutine_threadsafe(added, loop).result()
        return read_adapter_files(folder)

    monkeypatch.setattr("stratos_lora_registry.registrar.read_adapter_files", read)
    with pytest.raises(BadRequest, match="is a base model's"):
        await world.register()
    assert await world.is_untouched()


@pytest.mark.parametrize("digest", ["", "ab" * 31, "AB" * 32, "zz" * 32, "ab" * 32 + "\n"])
async def test_a_bad_base_digest_is_refused(world: World, digest: str) -> None:
    with pytest.raises(BadRequest, match="64 hex digits") as caught:
        await world.registrar.register(tenant="", name="one", base_model_digest=digest, uri="adapters/one")
    assert caught.value.param == "base_model_digest"


async def test_a_bad_tenant_is_refused(world: World) -> None:
    with pytest.raises(BadRequest, match="tenant"):
        await world.register(tenant="a:b")


async def test_an_adapter_over_the_size_limit_is_refused(world: World) -> None:
    write_adapter(world.root / "adapters" / "one")
    world.registrar = world.make_registrar(open_store(world.store_config), max_adapter_bytes=100)
    with pytest.raises(InvalidAdapter, match="too large"):
        await world.register()
    assert await world.is_untouched()


async def test_too_many_registrations_at_once_are_refused_now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(world.root / "adapters" / "one")
    store, entered, release = (
        open_store(world.store_config),
        asyncio.Event(),
        asyncio.Event(),
    )
    real_list = store.list_folder

    async def slow_list(folder: str) -> object:
        entered.set()
        await release.wait()
        return await real_list(folder)

    monkeypatch.setattr(store, "list_folder", slow_list)
    world.registrar = world.make_registrar(store, max_registrations=1)
    first = asyncio.create_task(world.register())
    await entered.wait()
    with pytest.raises(Overloaded, match="try again"):
        await world.register("two")
    release.set()
    await first
    assert (await world.register()).name == "one"  # the slot is free again


async def test_a_registry_without_room_says_so(world: World) -> None:
    """The defect: it was told as a bug of ours."""
    write_adapter(world.root / "adapters" / "one")
    world.work.rmdir()
    with pytest.raises(DependencyDown, match="disk"):
        await world.register()


class SlowStore:
    """An object store that holds up the files of one folder until it is released."""

    def __init__(self, store: ObjectStore, held: str) -> None:
        self.store, self.held = store, held
        self.entered, self.release = asyncio.Event(), asyncio.Event()
        self.put, self.fetch, self.download_folder = store.put, store.fetch, store.download_folder

    async def list_folder(self, folder: str) -> list[ObjectInfo]:
        if folder == self.held:
            self.entered.set()
            await self.release.wait()
        return await self.store.list_folder(folder)


@pytest.mark.parametrize("later_work", ["registration", "deletion"])
async def test_the_registration_that_began_later_wins(world: World, later_work: str) -> None:
    """The defect: the slower, older one had the last word."""
    for fill, name in enumerate(("old", "new")):
        write_adapter(world.root / name, fill=fill)
    await world.register("x", "new")
    slow = SlowStore(open_store(world.store_config), held="old")
    world.registrar = world.make_registrar(cast("ObjectStore", slow))
    older = asyncio.create_task(world.register("x", "old"))
    await slow.entered.wait()
    if later_work == "registration":
        await world.register("x", "new")
    else:
        await world.catalogue.delete("", "x")
    slow.release.set()
    with pytest.raises(BadRequest, match="the later one counts") as caught:
        await older
    assert caught.value.code == "superseded"
    assert [adapter.uri for adapter in await world.catalogue.list("")] == ["new"] * (later_work == "registration")


async def test_racing_registrations_of_one_name_leave_one(world: World) -> None:
    for fill in range(4):
        write_adapter(world.root / f"a{fill}", fill=fill)
    made = await asyncio.gather(*(world.register("x", f"a{fill}") for fill in range(4)), return_exceptions=True)
    [left] = await world.catalogue.list("")
    assert left in made
    assert all(isinstance(end, Adapter) or getattr(end, "code", "") == "superseded" for end in made)


async def test_a_malformed_record_takes_no_other_down_and_can_be_mended(world: World) -> None:
    """The defect: one record that lacked a field failed every list of every tenant."""
    for name in ("one", "two"):
        write_adapter(world.root / name)
        await world.register(name, name)
    await world.redis.hset("stratos:adapter", "/one", '99 {"schema": 1, "value": {"digest": "d"}}')
    assert [adapter.name for adapter in await world.catalogue.list("acme")] == ["two"]
    await world.register("one", "one")
    assert [adapter.name for adapter in await world.catalogue.list("acme")] == ["one", "two"]


async def test_an_emptied_redis_answers_no_list_and_takes_no_adapter(world: World) -> None:
    """The defect: an emptied Redis answered with an empty list, which took every adapter away."""
    write_adapter(world.root / "one")
    await world.register("one", "one")
    await world.redis.flushall()
    for call in (world.catalogue.list("acme"), world.catalogue.delete("", "one"), world.register("two", "one")):
        with pytest.raises(DependencyDown, match="adopt-store"):
            await call
    assert await world.redis.keys() == []


async def test_the_manifest_follows_every_change_and_catches_up(world: World, tmp_path: Path) -> None:
    write_adapter(world.root / "one")
    for name in ("one", "two"):
        await world.register(name, "one")
    await world.catalogue.delete("", "two")
    manifest = await world.manifests.read()
    assert manifest is not None
    assert {name: record.is_deleted for name, record in manifest.adapters.items()} == {"/one": False, "/two": True}
    path = world.root / MANIFEST_KEY
    before = path.read_bytes()
    await world.register("three", "one")
    path.write_bytes(before)  # as if another registry had overwritten it
    model = f"small/{'d' * 64}"
    await RecordWriter(RecordStore(world.redis), actor="a").change(
        Kind.MODEL, model, "model.add", lambda old: {"text_digest": "b" * 64}
    )  # by a gateway, which leaves the manifest to the registry
    await world.catalogue.check_manifest()
    manifest = await world.manifests.read()
    assert manifest is not None
    assert set(manifest.adapters) == {"/one", "/two", "/three"}
    assert set(manifest.models) == {model}


async def test_an_object_store_of_another_store_takes_no_adapter(world: World, redis_url: str, tmp_path: Path) -> None:
    write_adapter(world.root / "one")
    await world.redis.flushall()
    await marked_store(world.redis, tmp_path / "other")
    with pytest.raises(DependencyDown, match="another store"):
        await world.register("one", "one")
