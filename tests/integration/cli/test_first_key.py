"""``stratos admin init-store`` and ``add-key`` as a job of an installation runs them: from addresses and variables."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis import Redis
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.common.errors import DependencyDown
from stratos.core.tenancy.roles import Role
from stratos.store.key_store import ListedKey
from stratos.store.keys import Peppers, mint_key
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.deletion import delete_tenant
from tests.support.servers.record_stores import key_store
from tests.support.servers.redis_server import RedisServer

PEPPER = "a pepper of the installation"


def admin(*arguments: str, **variables: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["admin", *arguments], env=variables)
    return result.exit_code, result.output


@pytest.fixture
def installation(redis_url: str, tmp_path: Path) -> dict[str, str]:
    status, output = admin("init-store", f"--object-store=file://{tmp_path}", "--prefix=site", REDIS_URL=redis_url)
    assert status == 0, output
    return {"REDIS_URL": redis_url, "STRATOS_KEY_PEPPER": PEPPER}


def test_an_emptied_redis_is_no_new_installation(installation: dict[str, str], redis_url: str, tmp_path: Path) -> None:
    """The defect: an upgrade after a loss made tenants of known names again, so that no other key of theirs worked."""
    stores = (f"--object-store=file://{tmp_path}", "--prefix=site", f"--redis-url={redis_url}")
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger/head").write_text(f"0 {'a' * 64} 100 50\n")
    assert admin("init-store", *stores)[0] == 0, "the store is there"
    with Redis.from_url(redis_url) as client:
        client.flushall()
        status, output = admin("init-store", *stores)
        assert (status, "adopt-store" in output, client.dbsize()) == (1, True, 0)
    status, output = admin("adopt-store", "--without-ledger", *stores)
    assert status == 0, output
    assert admin("init-store", *stores)[0] == 0


def test_a_key_made_elsewhere_is_registered_once(installation: dict[str, str]) -> None:
    key = mint_key()
    for _ in range(2):
        arguments = ("add-key", "--tenant=team", "--name=first", "--prefix=site")
        status, output = admin(*arguments, **installation, STRATOS_API_KEY=key)
        assert status == 0, output
        assert key not in output


def test_a_store_is_set_up_with_its_first_keys(redis_url: str, tmp_path: Path) -> None:
    first, second = mint_key(), mint_key()
    keys = {"STRATOS_FIRST_KEY": first, "STRATOS_FIRST_ADMIN_KEY": second}
    arguments = ("init-store", f"--object-store=file://{tmp_path}", "--prefix=site", "--tenant=team", "--plan=local")
    status, output = admin(*arguments, REDIS_URL=redis_url, **keys)
    assert (status, "needs the pepper" in output) == (1, True)
    with pytest.raises(DependencyDown, match="never set up"):
        asyncio.run(list_keys(redis_url))
    outputs = [admin(*arguments, REDIS_URL=redis_url, STRATOS_KEY_PEPPER=PEPPER, **keys) for _ in range(2)]
    assert outputs[0] == outputs[1], "again changes nothing"
    assert outputs[0][0] == 0, outputs[0][1]
    assert not any(key in outputs[0][1] for key in keys.values())
    listed = {found.key_id: found for found in asyncio.run(list_keys(redis_url))}
    roles = {key_id: (found.tenant, found.record and found.record.terms.role) for key_id, found in listed.items()}
    assert roles == {first[3:15]: ("team", Role.TENANT), second[3:15]: ("platform", Role.ADMIN)}
    assert asyncio.run(plan_of(redis_url, "team")) == "local"


def test_a_first_key_that_was_revoked_stays_so_and_keeps_no_other_out(redis_url: str, tmp_path: Path) -> None:
    """An upgrade sets up again: the tenant may be deleted since, and the admin key may be new."""
    first, second = mint_key(), mint_key()
    arguments = ("init-store", f"--object-store=file://{tmp_path}", "--prefix=site", "--tenant=team")
    variables = {"REDIS_URL": redis_url, "STRATOS_KEY_PEPPER": PEPPER, "STRATOS_FIRST_KEY": first}
    assert admin(*arguments, **variables)[0] == 0
    asyncio.run(delete_team(redis_url))
    own = {"STRATOS_ADMIN_KEY": mint_key()}  # what admin commands call with is not registered
    status, output = admin(*arguments, **variables, **own, STRATOS_FIRST_ADMIN_KEY=second)
    assert (status, f"the key {first[3:15]} was revoked: it stays so" in output) == (0, True), output
    listed = {found.key_id: found.disabled for found in asyncio.run(list_keys(redis_url))}
    assert listed == {first[3:15]: True, second[3:15]: False}
    status, output = admin("add-key", "--tenant=team", "--prefix=site", **variables, STRATOS_API_KEY=first)
    assert (status, "was revoked" in output) == (1, True)
    assert asyncio.run(tenants_of(redis_url)) == ["platform"]


def test_a_plan_that_a_new_store_has_not_is_refused_before_gateways_follow_it(redis_url: str, tmp_path: Path) -> None:
    arguments = ("init-store", f"--object-store=file://{tmp_path}", "--prefix=site", "--plan=gold")
    status, output = admin(*arguments, REDIS_URL=redis_url, STRATOS_KEY_PEPPER=PEPPER, STRATOS_FIRST_KEY=mint_key())
    assert (status, "has no plan 'gold'" in output) == (1, True)
    with pytest.raises(DependencyDown, match="never set up"):
        asyncio.run(list_keys(redis_url))


def test_a_new_tenant_gets_the_plan_that_is_named_and_keeps_it(installation: dict[str, str]) -> None:
    found = []
    for plan in ("local", "batch"):  # an upgrade may name another one
        arguments = ("add-key", "--tenant=team", f"--plan={plan}", "--prefix=site")
        status, output = admin(*arguments, **installation, STRATOS_API_KEY=mint_key())
        assert status == 0, output
        found.append(asyncio.run(plan_of(installation["REDIS_URL"], "team")))
    assert found == ["local", "local"]


async def plan_of(redis_url: str, tenant: str) -> str:
    async with open_redis(redis_url) as redis:
        records = RecordStore(redis, RecordStoreConfig(prefix="site"))
        return (await key_store(records, Peppers(current=PEPPER)).tenants.get(tenant)).plan


async def tenants_of(redis_url: str) -> list[str]:
    async with open_redis(redis_url) as redis:
        records = RecordStore(redis, RecordStoreConfig(prefix="site"))
        return [tenant.name for tenant in await key_store(records, Peppers(current=PEPPER)).tenants.list()]


async def delete_team(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        records = RecordStore(redis, RecordStoreConfig(prefix="site"))
        await delete_tenant(RecordWriter(records, actor="test"), "team")


async def list_keys(redis_url: str) -> list[ListedKey]:
    async with open_redis(redis_url) as redis:
        records = RecordStore(redis, RecordStoreConfig(prefix="site"))
        return await key_store(records, Peppers(current=PEPPER)).list_keys()


def test_gateways_of_that_prefix_know_it(installation: dict[str, str]) -> None:
    key = mint_key()
    for role in ("tenant-admin", "admin"):  # a key that is there keeps its role
        admin("add-key", "--tenant=team", "--prefix=site", f"--role={role}", **installation, STRATOS_API_KEY=key)
    listed = asyncio.run(list_keys(installation["REDIS_URL"]))
    assert [(found.key_id, found.tenant) for found in listed] == [(key[3:15], "team")]
    assert [found.record and found.record.terms.role for found in listed] == [Role.TENANT_ADMIN]


def test_without_a_key_nothing_is_added_and_a_malformed_one_is_refused(installation: dict[str, str]) -> None:
    assert admin("add-key", **installation) == (0, "no key is given: none is added\n")
    status, output = admin("add-key", **installation, STRATOS_API_KEY="sk-mine")
    assert status == 1
    assert "the API key is malformed" in output


def test_stores_that_do_not_answer_are_said(tmp_path: Path) -> None:
    absent = RedisServer(tmp_path).url
    status, output = admin("init-store", f"--object-store=file://{tmp_path}", REDIS_URL=absent)
    assert status == 1
    assert "Redis does not answer" in output
