"""The store of a data directory: set up once, and never again when its Redis has lost it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.data.credentials import Credentials, load_credentials
from stratos.cli.data.folder import DataDir
from stratos.cli.keyring import OWN_TENANT, ensure_api_key
from stratos.cli.main import app
from stratos.cli.stores import StoreTarget, open_records, set_up_own_store
from stratos.common.errors import DependencyDown
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from tests.support.servers.record_stores import key_store
from tests.support.servers.s3_server import BUCKET, s3_server


class Laptop:
    """A data directory and its Redis."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.redis_url = redis_url
        self.data = DataDir(folder)
        self.data.prepare()
        self.target = StoreTarget(redis_url=redis_url, object_store_url=f"file://{self.data.store_path}")

    @property
    def credentials(self) -> Credentials:
        return load_credentials(self.data)

    async def start(self, *, is_new: bool = False) -> bool:
        return await set_up_own_store(self.target, self.credentials, self.data, is_new=is_new)

    async def marker_id(self) -> str | None:
        async with open_redis(self.redis_url) as redis:
            marker = await RecordStore(redis).marker()
        return None if marker is None else marker.store_id

    async def flush(self) -> None:
        async with open_redis(self.redis_url) as redis:
            await redis.flushall()


@pytest.fixture
def laptop(redis_url: str, tmp_path: Path) -> Laptop:
    return Laptop(redis_url, tmp_path)


async def test_a_new_data_directory_sets_its_store_up(laptop: Laptop) -> None:
    assert laptop.credentials.store_id == ""
    assert await laptop.start()
    assert laptop.credentials.store_id == await laptop.marker_id() != ""
    assert await laptop.start()  # a second start finds it
    key = await ensure_api_key(laptop.redis_url, laptop.credentials, laptop.data)
    assert await ensure_api_key(laptop.redis_url, laptop.credentials, laptop.data) == key
    async with open_records(laptop.redis_url) as records:
        tenant = await key_store(records).tenants.get(OWN_TENANT)
        assert tenant.plan == "local", "nothing of it is throttled"
        data_keys = await records.records(Kind.DATA_KEY)
        assert [record.id for record in data_keys] == [tenant.id], "its first stream has a record"


async def test_a_data_directory_whose_tenant_has_another_plan_keeps_it(laptop: Laptop) -> None:
    await laptop.start()
    async with open_records(laptop.redis_url) as records:
        await key_store(records).create_key(OWN_TENANT, "of release 0.1")
        await ensure_api_key(laptop.redis_url, laptop.credentials, laptop.data)
        assert (await key_store(records).tenants.get(OWN_TENANT)).plan == "standard"


async def test_a_start_over_an_emptied_redis_marks_nothing(laptop: Laptop) -> None:
    """The defect: every start stored its own key again, and with it the marker of a whole store."""
    await laptop.start()
    await ensure_api_key(laptop.redis_url, laptop.credentials, laptop.data)
    await laptop.flush()
    assert not await laptop.start()
    with pytest.raises(DependencyDown, match="adopt-store"):
        await ensure_api_key(laptop.redis_url, laptop.credentials, laptop.data)
    assert await laptop.marker_id() is None


async def test_a_redis_of_one_run_alone_is_set_up_as_the_same_store(laptop: Laptop) -> None:
    await laptop.start()
    store_id = laptop.credentials.store_id
    await laptop.flush()
    assert await laptop.start(is_new=True)
    assert await laptop.marker_id() == laptop.credentials.store_id == store_id


def test_in_a_toolbox_the_stores_come_from_the_environment(redis_url: str) -> None:
    """The chart's toolbox has these variables; the defect: its object store was asked for at Amazon."""
    with s3_server() as url:
        stores = {"REDIS_URL": redis_url, "STRATOS_OBJECT_STORE": f"s3://{BUCKET}/site", "STRATOS_S3_ENDPOINT": url}
        for command, said in (("init-store", "the store is"), ("backup", "0 records, "), ("backups", " bytes")):
            found = CliRunner().invoke(app, ["admin", command], env=stores)
            assert (found.exit_code, said in found.output) == (0, True), found.output
