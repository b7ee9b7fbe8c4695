"""Data keys at a gateway: every tenant gets one, an admin sees under which platform key, and wraps them again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world

KEY = "11" * 32


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path, platform_key=KEY, platform_key_id="one") as world:
        yield world


async def listed(world: AdminWorld) -> dict[str, str]:
    data = (await world.call("GET", "/data-keys")).json()["data"]
    return {entry["tenant_id"]: entry["platform_key_id"] for entry in data}


async def ids(world: AdminWorld) -> set[str]:
    return {tenant["id"] for tenant in (await world.call("GET", "/tenants")).json()["data"]}


async def test_tenants_of_a_command_without_the_secret_get_keys_and_lose_them_with_their_record(
    admin: AdminWorld,
) -> None:
    async def has_all() -> bool:
        return await listed(admin) == dict.fromkeys(await ids(admin), "one")

    assert len(await ids(admin)) == 3
    await eventually(has_all, "each tenant has a data key")
    assert (await admin.call("PUT", "/tenants/new", {})).status_code == 200
    assert await listed(admin) == dict.fromkeys(await ids(admin), "one"), "made with the tenant"
    assert (await admin.call("DELETE", "/tenants/new")).status_code == 200
    assert await listed(admin) == dict.fromkeys(await ids(admin), "one")
    log = (await admin.call("GET", "/audit")).json()["data"]
    made = [entry for entry in log if entry["kind"] == "data_key"]
    assert {entry["action"] for entry in made} == {"data-key.make", "data-key.delete"}
    assert not any("wrapped" in (entry[side] or {}) for entry in made for side in ("before", "after"))
    assert (await admin.call("POST", "/data-keys/rewrap", {})).json() == {"rewrapped": 0, "platform_key_id": "one"}
    for method, path in (("GET", "/data-keys"), ("POST", "/data-keys/rewrap")):
        assert (await admin.call(method, path, by="owner")).status_code == 403


async def test_a_gateway_without_a_platform_key_has_no_data_keys(redis_url: str, tmp_path: Path) -> None:
    async with admin_world(redis_url, tmp_path) as world:
        assert (await world.call("GET", "/data-keys")).status_code == 404
        assert (await world.call("PUT", "/tenants/new", {})).status_code == 200
