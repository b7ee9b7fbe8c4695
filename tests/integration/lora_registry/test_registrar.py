"""Registration against a real Redis and a local object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stratos.common.errors import BadRequest, InvalidAdapter, ModelNotFound, NotFound, Overloaded
from stratos.core.adapter import Adapter
from stratos.core.files.adapter_files import read_adapter_files
from stratos.store.object_store import ObjectStore
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos_lora_registry.catalogue import AdapterCatalogue
from stratos_lora_registry.registrar import Registrar, RegistrarConfig
from tests.support.adapter_folders import BASE_DIGEST, BREAKAGES, WEIGHTS, write_adapter


class World:
    def __init__(self, redis: Redis, folder: Path) -> None:
        self.redis = redis
        self.root = folder / "store"
        self.work = folder / "work"
        for path in (self.root, self.work):
            path.mkdir()
        self.now = 1000.0
        self.catalogue = AdapterCatalogue(redis)
        self.store_config = ObjectStoreConfig(url=f"file://{self.root}")
        self.registrar = self.make_registrar(open_store(self.store_config))

    def make_registrar(self, store: ObjectStore, **config: int) -> Registrar:
        full = RegistrarConfig(work_folder=self.work, **config)
        return Registrar(self.catalogue, store, full, lambda: self.now)

    async def register(self, name: str = "one", uri: str = "adapters/one", tenant: str = "") -> Adapter:
        return await self.registrar.register(tenant=tenant, name=name, base_model_digest=BASE_DIGEST, uri=uri)

    async def is_untouched(self) -> bool:
        return not await self.redis.keys() and not any(self.work.iterdir())


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_redis(redis_url) as redis:
        yield World(redis, tmp_path)


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
    assert len(await world.redis.keys("stratos:adapter:*")) == 1


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
    lifetimes = sorted([await world.redis.ttl(key) for key in await world.redis.keys("stratos:adapter:*")])
    assert lifetimes[0] == -1  # the current version stays
    assert lifetimes[1] > 0  # the superseded one expires
    write_adapter(folder, fill=1)
    assert await world.register() == first  # and back: kept for good again
    assert [await world.redis.ttl(k) for k in await world.redis.keys("stratos:adapter:*")].count(-1) == 1


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


async def test_racing_registrations_of_one_name_leave_it_whole(world: World) -> None:
    for fill in range(4):
        write_adapter(world.root / f"a{fill}", fill=fill)
    made = await asyncio.gather(*(world.register("x", f"a{fill}") for fill in range(4)))
    assert len({adapter.digest for adapter in made}) == 4
    [left] = await world.catalogue.list("")
    assert left in made
    lifetimes = [await world.redis.ttl(key) for key in await world.redis.keys("stratos:adapter:*")]
    assert lifetimes.count(-1) == 1
