"""What becomes of keys and tenants over time: expiry, rotation, suspension, last use, deletion, the audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import BadRequest, InvalidApiKey, NotFound, PermissionDenied
from stratos.core.tenancy.plan import STANDARD
from stratos.core.tenancy.roles import Role
from stratos.store.counters.key_use import KeyUse
from stratos.store.key_store import KeyStore
from stratos.store.keys import KeyTerms, parse_key
from stratos.store.records.audit import AuditEntry, AuditPage
from stratos.store.records.record import Kind
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.deletion import delete_tenant
from stratos.store.tenants import block_id
from tests.support.servers.record_stores import PEPPERS, Follower, MarkedStore, following, marked_store

NOW_S = 2_000_000_000


class WallClock:
    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as client:
        yield await marked_store(client, tmp_path / "objects")


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def keys(store: MarkedStore, clock: WallClock) -> KeyStore:
    return KeyStore(RecordWriter(store.records, actor="key:ops"), PEPPERS, wall_clock=clock)


@pytest.fixture
async def gateway(redis_url: str, clock: WallClock, store: MarkedStore) -> AsyncIterator[Follower]:
    async with following(redis_url, wall_clock=clock) as found:
        yield found


async def seen(gateway: Follower, key: str) -> str:
    """What a gateway answers to a key now."""
    assert await gateway.follower.catch_up()
    try:
        return (await gateway.keys.authenticate(key)).name
    except (InvalidApiKey, PermissionDenied) as error:
        return error.message


async def test_a_key_expires(keys: KeyStore, gateway: Follower, clock: WallClock) -> None:
    key = await keys.create_key("acme", "k", terms=KeyTerms(expires_unix_s=NOW_S + 10))
    clock.now_s = NOW_S + 9.9
    assert await seen(gateway, key) == "acme"
    clock.now_s = NOW_S + 10.0
    assert "expired" in await seen(gateway, key)


async def test_both_keys_work_while_a_rotation_overlaps(keys: KeyStore, gateway: Follower, clock: WallClock) -> None:
    terms = KeyTerms(role=Role.TENANT_ADMIN, models=("base",), networks=(ip_network("10.0.0.0/8"),))
    old = await keys.create_key("acme", "k", terms=terms)
    new = await keys.rotate_key(parse_key(old), overlap_s=60)
    assert [await seen(gateway, key) for key in (old, new)] == ["acme", "acme"]
    made = await gateway.keys.authenticate(new)
    assert (made.role, made.models, made.networks) == (terms.role, terms.models, terms.networks)
    clock.now_s += 60
    assert "expired" in await seen(gateway, old)
    assert await seen(gateway, new) == "acme"
    with pytest.raises(BadRequest, match=parse_key(new)):
        await keys.rotate_key(parse_key(old), overlap_s=60)


async def test_a_rotation_lengthens_no_life(keys: KeyStore, gateway: Follower, clock: WallClock) -> None:
    old = await keys.create_key("acme", "k", terms=KeyTerms(expires_unix_s=NOW_S + 5))
    new = await keys.rotate_key(parse_key(old), overlap_s=3600)
    clock.now_s += 5
    assert "expired" in await seen(gateway, old)
    assert "expired" in await seen(gateway, new)
    with pytest.raises(BadRequest, match="expired"):
        await keys.rotate_key(parse_key(new), overlap_s=3600)


async def test_keys_and_tenants_are_suspended_and_resumed(keys: KeyStore, gateway: Follower) -> None:
    key, other = await keys.create_key("acme", "k"), await keys.create_key("acme", "other")
    await keys.suspend_key(parse_key(key), is_suspended=True)
    assert "suspended" in await seen(gateway, key)
    assert await seen(gateway, other) == "acme"
    await keys.suspend_key(parse_key(key), is_suspended=False)
    assert await seen(gateway, key) == "acme"
    await keys.tenants.suspend("acme", is_suspended=True)
    assert ["tenant is suspended" in await seen(gateway, k) for k in (key, other)] == [True, True]
    await keys.tenants.suspend("acme", is_suspended=False)
    assert await seen(gateway, key) == "acme"


async def test_an_override_changes_one_field_for_one_tenant(keys: KeyStore, gateway: Follower) -> None:
    key, other = await keys.create_key("acme", "k"), await keys.create_key("other", "k")
    await keys.tenants.put("acme", plan="standard", overrides={"weight": 9}, is_suspended=False)
    await keys.tenants.put_plan(replace(STANDARD, max_n=3))
    assert await gateway.follower.catch_up()
    found = (await gateway.keys.authenticate(key)).plan
    assert (found.weight, found.max_n) == (9, 3)
    assert (await gateway.keys.authenticate(other)).plan == replace(STANDARD, max_n=3)
    await keys.tenants.delete_plan("standard")
    assert await gateway.follower.catch_up()
    assert (await gateway.keys.authenticate(other)).plan == STANDARD


async def test_a_tenant_of_an_older_store_keeps_its_terms_until_it_is_given_a_plan(
    keys: KeyStore, store: MarkedStore, gateway: Follower
) -> None:
    async def limit() -> int | None:
        assert await gateway.follower.catch_up()
        return (await gateway.keys.authenticate(key)).plan.requests_per_min

    key = await keys.create_key("acme", "k")
    text = await store.redis.hget("stratos:tenant", "acme")
    body = json.loads(text.partition(" ")[2])
    del body["value"]["built_in_version"]
    await store.records.write(Kind.TENANT, "acme", json.dumps(body), seen=int(text.partition(" ")[0]))
    assert await limit() is None
    await keys.tenants.suspend("acme", is_suspended=True)
    await keys.tenants.put("acme", plan="standard", overrides={"weight": 2}, is_suspended=False)
    await keys.create_key("acme", "another", first_plan="local")
    assert await limit() is None, "what is said again, in a file for one, gives no plan"
    await keys.tenants.put_plan(replace(STANDARD, requests_per_min=7))
    assert await limit() == 7
    await keys.tenants.delete_plan("standard")
    assert await limit() is None
    await keys.tenants.set_plan("acme", "standard")
    assert await limit() == STANDARD.requests_per_min == 60
    await keys.tenants.put("acme", plan="local", overrides={}, is_suspended=False)
    assert await limit() is None


async def test_a_plan_that_tenants_have_stays(keys: KeyStore) -> None:
    await keys.tenants.put_plan(replace(STANDARD, name="gold"))
    await keys.create_key("acme", "k", plan="gold")
    with pytest.raises(BadRequest, match="acme"):
        await keys.tenants.delete_plan("gold")
    await keys.tenants.set_plan("acme", "standard")
    await keys.tenants.delete_plan("gold")
    with pytest.raises(NotFound):
        await keys.tenants.delete_plan("gold")


async def test_a_deleted_tenant_comes_back_with_another_salt_and_no_key(
    keys: KeyStore, gateway: Follower, store: MarkedStore
) -> None:
    key, other = await keys.create_key("acme", "k"), await keys.create_key("other", "k")
    await keys.tenants.block(block_id("a", "acme"), "abuse")
    salt = (await gateway.keys.authenticate(key)).cache_salt
    await delete_tenant(RecordWriter(store.records, actor="key:ops"), "acme")
    assert "not known" in await seen(gateway, key)
    assert await seen(gateway, other) == "other"
    assert [block for block in await store.records.records(Kind.BLOCK) if not block.is_deleted] == []
    assert salt.hex() not in str(await store.redis.hgetall("stratos:tenant"))
    again = await keys.create_key("acme", "k")
    assert await seen(gateway, again) == "acme"
    assert (await gateway.keys.authenticate(again)).cache_salt != salt
    assert "not known" in await seen(gateway, key)


async def test_the_last_use_of_a_key_is_written_later(
    store: MarkedStore, keys: KeyStore, clock: WallClock, redis_url: str
) -> None:
    use = KeyUse(store.redis, RecordStoreConfig(), wall_clock=clock)
    key = await keys.create_key("acme", "k")
    async with following(redis_url, wall_clock=clock, note_use=use.note_use) as gateway:
        await gateway.keys.authenticate(key)
        assert await use.last_uses([parse_key(key)]) == [None]
        await use.flush()
        clock.now_s -= 100  # another gateway, whose clock is behind ours, takes nothing back
        await gateway.keys.authenticate(key)
        await use.flush()
    assert await use.last_uses([parse_key(key), "absent"]) == [NOW_S, None]


async def test_every_change_is_in_the_audit_log_with_its_author_and_without_secrets(
    store: MarkedStore, keys: KeyStore
) -> None:
    key = await keys.create_key("acme", "k", plan="premium")
    await keys.tenants.put("acme", plan="batch", overrides={}, is_suspended=False)
    await keys.tenants.put("acme", plan="batch", overrides={}, is_suspended=False)  # changes nothing
    await keys.revoke_key(parse_key(key))
    entries = (await store.records.audit_page()).entries
    assert [(entry.actor, entry.action, entry.tenant) for entry in entries] == [
        ("key:ops", action, "acme") for action in ("tenant.create", "key.create", "tenant.put", "key.revoke")
    ]
    put, revoked = entries[2], entries[3]
    assert put.before is not None
    assert put.after is not None
    assert (put.before["plan"], put.after["plan"]) == ("premium", "batch")
    assert (revoked.id, revoked.after) == (parse_key(key), None)
    record = await keys.tenants.get("acme")
    text = json.dumps(await store.redis.xrange("stratos:audit"))
    assert record.cache_salt.hex() not in text
    assert not any(word in text for word in ("mac", "cache_salt", key.split("-")[2]))
    later = (await store.records.audit_page(entries[1].entry_id)).entries
    assert [entry.entry_id for entry in later] == [put.entry_id, revoked.entry_id]


async def test_a_page_of_the_audit_log_has_entries_of_one_tenant_or_of_all_and_bounded_bytes(
    store: MarkedStore, keys: KeyStore
) -> None:
    for number in range(20):
        await keys.create_key("acme", f"a{number}")
        await keys.create_key("other", f"o{number}")
    acme = await keys.tenants.ref("acme")
    of_acme = await store.records.audit_page(tenant=acme.id)
    assert [entry.tenant_id for entry in of_acme.entries] == [acme.id] * 21
    assert of_acme.next_after == of_acme.entries[-1].entry_id
    assert await store.records.audit_page(of_acme.next_after, tenant=acme.id) == AuditPage([], None)
    every = await store.records.audit_page()
    assert [e for e in every.entries if e.tenant_id == acme.id] == of_acme.entries
    later = await store.records.audit_page(of_acme.entries[18].entry_id, tenant=acme.id)
    assert later.entries == of_acme.entries[19:]
    for number in range(20):
        name = f"t{number}"
        large = AuditEntry(actor="a", action="b", kind="template", id=name, before=None, after={"text": "x" * 200_000})
        await store.records.write(Kind.TEMPLATE, name, "{}", seen=0, audit=large)
    found, after = list[str](), every.entries[-1].entry_id
    while after is not None:
        page = await store.records.audit_page(after)
        assert sum(len(entry.as_text()) for entry in page.entries) < 4 << 20
        found += [entry.id for entry in page.entries]
        after = page.next_after
    assert found == [f"t{number}" for number in range(20)]


async def test_a_record_of_a_newer_build_is_not_overwritten(store: MarkedStore, keys: KeyStore) -> None:
    text = '9999999999999999 {"schema": 2, "value": {}}'
    await store.redis.hset("stratos:tenant", "acme", text)  # type: ignore[misc]
    with pytest.raises(Exception, match="cannot be read"):
        await keys.create_key("acme", "k")
    assert await store.records.text_of(Kind.TENANT, "acme") == text


@pytest.mark.parametrize("change", ["suspended", "rotated"])
async def test_a_key_that_is_changed_while_it_is_rotated_gets_no_successor_that_works(
    store: MarkedStore, keys: KeyStore, change: str
) -> None:
    """Else who rotates a key just as the platform suspends it has one that is not."""
    old = parse_key(await keys.create_key("acme", "k"))

    class Interrupted(RecordWriter):
        async def change(self, kind: Kind, record_id: str, *told: Any, **more: Any) -> bool:
            is_changed = await super().change(kind, record_id, *told, **more)
            if record_id != old and change == "suspended":
                await keys.suspend_key(old, is_suspended=True)
            elif record_id != old:
                await keys.rotate_key(old, overlap_s=60)
            return is_changed

    with pytest.raises(BadRequest, match="changed"):
        await KeyStore(Interrupted(store.records, actor="key:owner"), PEPPERS).rotate_key(old, overlap_s=60)
