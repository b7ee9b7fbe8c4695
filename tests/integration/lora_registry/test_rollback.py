"""``stratos adapters rollback`` against a registry's process: once by itself, and to any version that is named."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stratos.cli.adapters import (
    SHIPPED_FOLDER,
    AdapterTarget,
    RegistryAddress,
    publish_shipped_adapters,
    roll_back_adapter,
)
from stratos.common.errors import BadRequest, InvalidAdapter, NotFound
from stratos.core.adapter import Adapter, AdapterVersion
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.files.model_files import read_model_files
from stratos.rpc.clients.registry import RegistryClient
from stratos.rpc.serving.address_file import read_address_file
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from tests.integration.lora_registry.test_service import mark, registry
from tests.support.paths import MODELS
from tests.support.reference.adapter_folders import BASE_DIGEST, WEIGHTS, write_adapter


@dataclass
class World:
    """A registry of one test."""

    client: RegistryClient
    root: Path
    redis_url: str

    @property
    def address(self) -> RegistryAddress:
        found = read_address_file(self.root / "registry.json")
        assert found is not None
        return RegistryAddress(found.address)

    async def register(self, fill: int, *, name: str = "one", tenant: str = "", base: str = BASE_DIGEST) -> Adapter:
        write_adapter(self.root / "store" / str(fill), fill=fill)
        return await self.client.register(name=name, tenant=tenant, uri=str(fill), base_model_digest=base)

    async def back(self, to: str = "", *, name: str = "one", tenant: str = "") -> Adapter:
        return await roll_back_adapter(AdapterTarget(registry=self.address), name=name, tenant=tenant, to=to)

    async def actions(self) -> list[str]:
        async with open_redis(self.redis_url) as redis:
            return [entry.action for entry in (await RecordStore(redis).audit_page()).entries]


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    await mark(redis_url, tmp_path)
    async with registry(tmp_path, redis_url) as client:
        yield World(client, tmp_path, redis_url)


async def test_a_name_goes_back_once_by_itself_and_a_command_that_is_sent_again_brings_nothing_back(
    world: World,
) -> None:
    with pytest.raises(NotFound, match="no adapter 'one'"):
        await world.back()
    made = [await world.register(0)]
    with pytest.raises(NotFound, match="another version"):
        await world.back()
    made += [await world.register(fill) for fill in (1, 2)]
    a, b, c = (adapter.version for adapter in made)
    back = await world.back()
    assert (back.version, back.former, back.is_rolled_back) == (b, (c, a), True)
    with pytest.raises(BadRequest, match="went back already") as refused:
        await world.back()
    assert refused.value.param == "to"
    assert await world.back(b.digest) == back, "it stands for it"
    assert await world.client.list("") == (back,)
    older = await world.back(a.digest[:20])
    assert (older.version, older.former, older.is_rolled_back) == (a, (b, c), True)
    newer = await world.register(3)
    assert (newer.former, newer.is_rolled_back) == ((a, b, c), False)
    assert (await world.back()).version == a, "a version that was registered since is gone back from"
    assert await world.actions() == [
        *["adapter.register"] * 3, *["adapter.rollback"] * 2, "adapter.register", "adapter.rollback",
    ]  # fmt: skip


async def test_digits_name_one_version_whose_files_must_be_there_as_they_were(world: World) -> None:
    one, other = alike(world.root / "drawn")
    last = next(fill for fill in range(20) if fill not in (one, other))
    versions = [(await world.register(fill)).version for fill in (one, other, last)]
    with pytest.raises(BadRequest, match="several versions") as refused:
        await world.back(versions[0].digest[0])
    assert refused.value.param == "to"
    with pytest.raises(NotFound, match="never stood for a version zz; versions before: "):
        await world.back("zz")
    (world.root / "store" / str(other) / WEIGHTS).write_bytes(b"broken")
    write_adapter(world.root / "store" / str(one), fill=99)
    for version in versions[:2]:
        with pytest.raises(InvalidAdapter):
            await world.back(version.digest)
    assert [adapter.version for adapter in await world.client.list("")] == [versions[2]]


def alike(folder: Path) -> tuple[int, int]:
    """Two fills whose digests begin with one digit: of 17 there are some."""
    found: dict[str, int] = {}
    for fill in itertools.count():
        digit = read_adapter_files(write_adapter(folder / str(fill), fill=fill)).digest[0]
        if digit in found:
            return found[digit], fill
        found[digit] = fill
    raise AssertionError


async def test_an_owner_goes_back_alone_and_to_another_base_model_only_where_that_is_named(world: World) -> None:
    common = [await world.register(fill) for fill in (0, 1)][-1]
    own = [await world.register(fill, tenant="acme") for fill in (2, 3)]
    assert (await world.back(tenant="acme")).version == own[0].version
    assert await world.client.list("other") == (common,)
    with pytest.raises(NotFound, match="no adapter 'one' of this owner"):
        await world.back(tenant="other")
    moved = await world.register(4, base="cd" * 32)
    with pytest.raises(BadRequest, match="another base model") as refused:
        await world.back()
    assert refused.value.param == "to"
    assert moved.former[0] == common.version
    assert (await world.back(common.digest[:12])).version == common.version


async def test_an_older_registry_that_registers_what_is_there_is_told_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fill in (0, 1):
        await world.register(fill)
    write_adapter(world.root / "store" / "0", fill=7)
    plain = RegistryClient.register

    async def older(self: RegistryClient, *, digest: str = "", **given: str) -> Adapter:
        return await plain(self, **given)  # it knows no such field

    monkeypatch.setattr(RegistryClient, "register", older)
    with pytest.raises(InvalidAdapter, match="of an older version"):
        await world.back()


async def test_a_start_of_the_platform_leaves_a_shipped_adapter_that_was_rolled_back(world: World) -> None:
    model = shutil.copytree(MODELS / "draft", world.root / "models" / "base")
    shipped = {name: world.root / "models" / SHIPPED_FOLDER / name for name in ("kept", "moved")}
    base = read_model_files(model).digest

    async def start(fill: int) -> dict[str, AdapterVersion]:
        for folder in shipped.values():
            write_adapter(folder, fill=fill)
        names = await publish_shipped_adapters(
            model, handed_digest="", store_url=f"file://{world.root}/store", s3_endpoint_url="", registry=world.address
        )
        assert names == ("kept", "moved")
        return {adapter.name: adapter.version for adapter in await world.client.list("")}

    first, second = await start(1), await start(2)
    assert first["kept"].base_model_digest == base
    await world.back(name="kept")
    assert await start(2) == {"kept": first["kept"], "moved": second["moved"]}
