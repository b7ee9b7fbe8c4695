"""API keys against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from stratos.common.errors import BadRequest, DependencyDown, InvalidApiKey, NotFound, PermissionDenied
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD
from stratos.store.keys import Peppers, mint_key, parse_key, with_checksum
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig, SnapshotConfig
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.tenant_store import TenantStore
from tests.support.promises import Promised
from tests.support.servers.record_stores import PEPPERS, MarkedStore, following, key_store, marked_store
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
async def store(redis_url: str, tmp_path: Path) -> AsyncIterator[MarkedStore]:
    async with open_redis(redis_url) as client:
        yield await marked_store(client, tmp_path / "objects")


async def test_a_key_authenticates_and_its_text_is_nowhere_in_redis(store: MarkedStore, redis_url: str) -> None:
    key = await store.keys.create_key("acme", "laptop", plan="premium")
    async with following(redis_url) as gateway:
        tenant = await gateway.keys.authenticate(key)
        assert (tenant.name, tenant.priority_class, len(tenant.cache_salt)) == ("acme", 1, 32)
        record = gateway.snapshot.get(Kind.KEY, parse_key(key))
        assert record is not None
    secret = key.split("-")[2]
    dump = []
    for name in await store.redis.keys():
        kind = await store.redis.type(name)
        dump.append(str(await (store.redis.hgetall(name) if kind == "hash" else store.redis.xrange(name))))
    assert any(parse_key(key) in text for text in dump)
    assert not any(secret in text or PEPPERS.current in text for text in dump)
    shown = repr(record)
    assert not any(hidden in shown for hidden in (tenant.cache_salt.hex(), record.value.mac))  # type: ignore[union-attr]


async def test_one_tenant_keeps_one_salt_and_two_differ(store: MarkedStore, redis_url: str) -> None:
    keys = [await store.keys.create_key(tenant, "k") for tenant in ("acme", "acme", "other")]
    async with following(redis_url) as gateway:
        salts = [(await gateway.keys.authenticate(key)).cache_salt for key in keys]
    assert salts[0] == salts[1] != salts[2]


async def test_an_own_key_can_be_stored_twice_until_it_is_revoked(store: MarkedStore) -> None:
    key = mint_key()
    assert [await store.keys.create_key("acme", "k", key=key) for _ in range(2)] == [key, key]
    await store.keys.revoke_key(parse_key(key))
    with pytest.raises(BadRequest, match="revoked"):
        await store.keys.create_key("acme", "k", key=key)
    assert [(k.tenant, k.name, k.disabled) for k in await store.keys.list_keys()] == [("acme", "k", True)]


async def test_what_must_not_pass(store: MarkedStore, redis_url: str) -> None:
    key = await store.keys.create_key("acme", "k")
    body = key.rpartition("-")[0]
    wrong_secret = with_checksum(body[:-1] + ("0" if body[-1] != "0" else "1"))
    async with following(redis_url) as gateway:
        for text in (wrong_secret, mint_key(), "garbage"):
            with pytest.raises(InvalidApiKey):
                await gateway.keys.authenticate(text)
        await gateway.keys.authenticate(key)
    async with following(redis_url, peppers=Peppers(current="another-pepper-of-16")) as stranger:
        with pytest.raises(InvalidApiKey):
            await stranger.keys.authenticate(key)


async def test_a_key_works_at_once_and_no_longer_once_revoked(store: MarkedStore, redis_url: str) -> None:
    async with following(redis_url, SnapshotConfig(poll_s=60.0)) as gateway:
        revoked, kept = [await store.keys.create_key("acme", name) for name in "ab"]
        await gateway.keys.authenticate(revoked)  # looked for, although the next poll is a minute away
        await gateway.keys.authenticate(kept)
        await store.keys.revoke_key(parse_key(revoked))
        assert await gateway.follower.catch_up()
        with pytest.raises(InvalidApiKey):
            await gateway.keys.authenticate(revoked)
        await gateway.keys.authenticate(kept)
    with pytest.raises(NotFound):
        await store.keys.revoke_key("0" * 12)


async def test_unknown_keys_in_numbers_share_their_looks(store: MarkedStore, redis_url: str) -> None:
    async with following(redis_url) as gateway:
        before = int((await store.redis.info("commandstats"))["cmdstat_hmget"]["calls"])
        found = await asyncio.gather(
            *(gateway.keys.authenticate(mint_key()) for _ in range(500)), return_exceptions=True
        )
        assert all(isinstance(error, InvalidApiKey) for error in found)
        assert int((await store.redis.info("commandstats"))["cmdstat_hmget"]["calls"]) - before < 20


async def test_every_key_outlives_redis_and_only_new_ones_need_it(
    redis_server: RedisServer, tmp_path: Path, promised: Promised
) -> None:
    async with open_redis(redis_server.url) as client, following(redis_server.url) as gateway:
        store = await marked_store(client, tmp_path / "objects")
        never_used = await store.keys.create_key("acme", "a")
        known = gateway.snapshot
        await eventually(lambda: gateway.follower.is_following and known.num_records() == 2, "the key is known")
        redis_server.kill()
        await eventually(lambda: gateway.snapshot.state is SnapshotState.STALE, "the outage is seen")
        assert (await gateway.keys.authenticate(never_used)).name == "acme"
        with promised("new keys are refused while Redis is away", 1.0):
            with pytest.raises(DependencyDown):
                await gateway.keys.authenticate(mint_key())
            with pytest.raises(DependencyDown):
                await store.keys.create_key("acme", "b")
        redis_server.start()
        later = await store.keys.create_key("acme", "b")
        await eventually(lambda: gateway.follower.is_following, "the store is followed again")
        await gateway.keys.authenticate(later)


async def test_an_emptied_redis_takes_no_key_and_drops_none(store: MarkedStore, redis_url: str) -> None:
    """The defect: one key written to the emptied store made every other tenant's key unknown."""
    key = await store.keys.create_key("acme", "a")
    async with following(redis_url) as gateway:
        await store.redis.flushall()
        await eventually(lambda: gateway.snapshot.state is SnapshotState.FOREIGN, "the emptied store is seen")
        with pytest.raises(DependencyDown, match="adopt-store"):
            await store.keys.create_key("other", "b")
        assert await store.redis.keys() == []
        await gateway.keys.authenticate(key)
        with pytest.raises(DependencyDown):
            await gateway.keys.authenticate(mint_key())
    async with following(redis_url) as newcomer:  # knows nothing, and must not say that the key is wrong
        assert newcomer.follower.not_ready_reason()
        with pytest.raises(DependencyDown):
            await newcomer.keys.authenticate(key)


async def test_another_store_in_the_place_of_the_old_one_is_an_outage(
    store: MarkedStore, redis_url: str, tmp_path: Path
) -> None:
    key = await store.keys.create_key("acme", "a")
    async with following(redis_url) as gateway:
        await store.redis.flushall()
        other = await marked_store(store.redis, tmp_path / "other objects")
        stranger = await other.keys.create_key("acme", "b")
        await eventually(lambda: gateway.snapshot.state is SnapshotState.FOREIGN, "the other store is seen")
        await gateway.keys.authenticate(key)
        with pytest.raises(DependencyDown):
            await gateway.keys.authenticate(stranger)
        with pytest.raises(DependencyDown, match="another store"):
            await key_store(store.records, store_id=store.store_id).create_key("acme", "c")


async def test_records_that_vanish_one_by_one_are_an_outage_too(store: MarkedStore, redis_url: str) -> None:
    """An evicting Redis, or a slip with DEL."""
    key = await store.keys.create_key("acme", "a")
    async with following(redis_url, SnapshotConfig(poll_s=0.02, full_pass_s=0.02)) as gateway:
        await store.redis.delete("stratos:key")
        await eventually(lambda: gateway.snapshot.state is SnapshotState.FOREIGN, "the loss is seen")
        await gateway.keys.authenticate(key)
        with pytest.raises(DependencyDown, match="lost records"):
            await store.keys.create_key("acme", "b")


async def test_a_gateway_that_missed_changes_reads_everything(redis_url: str, tmp_path: Path) -> None:
    async with open_redis(redis_url) as client:
        store = await marked_store(client, tmp_path / "objects", RecordStoreConfig(max_changes=1))
        async with following(redis_url, SnapshotConfig(poll_s=60.0)) as gateway:
            reads = gateway.follower.num_full_reads
            keys = [await store.keys.create_key("acme", str(number)) for number in range(300)]
            assert await store.redis.xlen("stratos:changes") < 300
            await gateway.follower.look()
            for key in keys:
                await gateway.keys.authenticate(key)
            assert gateway.follower.num_full_reads == reads + 1


async def go_back(store: MarkedStore, before: Mapping[str, Mapping[str, str]]) -> None:
    """Let Redis be as it was."""
    pipe = store.redis.pipeline(transaction=True)
    for name, fields in before.items():
        pipe.delete(f"stratos:{name}").hset(f"stratos:{name}", mapping=dict(fields))
    pipe.delete("stratos:changes")
    await pipe.execute()


async def test_a_redis_that_comes_back_older_revives_no_revoked_key(store: MarkedStore, redis_url: str) -> None:
    revoked, kept = [await store.keys.create_key("acme", name) for name in "ab"]
    async with following(redis_url) as gateway:
        before = {name: await store.redis.hgetall(f"stratos:{name}") for name in ("store", "tenant", "key")}
        await store.keys.revoke_key(parse_key(revoked))
        assert await gateway.follower.catch_up()
        await go_back(store, before)
        await eventually(lambda: gateway.follower.num_full_reads > 1, "the older content is seen")
        await eventually(lambda: gateway.follower.is_following, "it is followed")
        with pytest.raises(InvalidApiKey):
            await gateway.keys.authenticate(revoked)
        await gateway.keys.authenticate(kept)


async def test_a_suspension_after_a_failover_counts_where_the_clock_of_the_new_master_is_behind(
    store: MarkedStore, redis_url: str
) -> None:
    """It lacks the last change of the tenant, whose version is a time to come by its own clock."""
    key, tenants = await store.keys.create_key("acme", "a"), TenantStore(RecordWriter(store.records, actor="test"))
    async with following(redis_url) as gateway:
        before = {name: await store.redis.hgetall(f"stratos:{name}") for name in ("store", "tenant", "key")}
        await store.redis.hincrby("stratos:store", "revision", 30_000_000)
        await tenants.set_plan("acme", PREMIUM.name)
        assert await gateway.follower.catch_up()
        num_reads = gateway.follower.num_full_reads
        await go_back(store, before)
        await eventually(lambda: gateway.follower.num_full_reads > num_reads, "the older content is seen")
        await tenants.suspend("acme", is_suspended=True)
        assert await gateway.follower.catch_up()
        with pytest.raises(PermissionDenied):
            await gateway.keys.authenticate(key)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.TENANT, "no record"),
        (Kind.TENANT, '9999999999999999 {"schema": 1, "value": {"cache_salt": "no hex"}}'),
        (Kind.TENANT, '9999999999999999 {"schema": 2, "value": {}}'),
        (Kind.KEY, '9999999999999999 {"schema": 1, "value": {"tenant": "spoilt"}}'),
        (Kind.KEY, b"\xff\xfe"),
    ],
)
async def test_a_malformed_record_is_skipped_and_reported_and_stops_no_other(
    store: MarkedStore, redis_url: str, kind: Kind, text: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, healthy = [await store.keys.create_key(tenant, "k") for tenant in ("spoilt", "healthy")]
    record_id = "spoilt" if kind is Kind.TENANT else parse_key(spoilt)
    async with following(redis_url, SnapshotConfig(poll_s=0.02, full_pass_s=0.02)) as gateway:
        await store.redis.hset(f"stratos:{kind.value}", record_id, text)
        await eventually(lambda: gateway.snapshot.malformed, "the record is seen")
        assert list(gateway.snapshot.malformed) == [(kind, record_id)]
        for key in (spoilt, healthy):  # the last good version stays
            await gateway.keys.authenticate(key)
    async with following(redis_url) as newcomer:
        await newcomer.keys.authenticate(healthy)
        with pytest.raises(DependencyDown):
            await newcomer.keys.authenticate(spoilt)
    assert f"{kind.value} '{record_id}' is skipped" in caplog.text
    assert "no hex" not in caplog.text


async def test_a_plan_is_set_with_the_tenant_and_changed_later(store: MarkedStore, redis_url: str) -> None:
    plain = await store.keys.create_key("plain", "k")
    urgent = await store.keys.create_key("u", "k", plan="premium")
    async with following(redis_url) as gateway:
        assert (await gateway.keys.authenticate(plain)).plan == STANDARD
        assert (await gateway.keys.authenticate(urgent)).plan == PREMIUM
        salt = (await gateway.keys.authenticate(urgent)).cache_salt
        await store.keys.tenants.set_plan("u", "batch")
        assert await gateway.follower.catch_up()
        changed = await gateway.keys.authenticate(urgent)
        assert (changed.plan, changed.cache_salt) == (BATCH, salt)
    with pytest.raises(BadRequest, match="set-plan"):
        await store.keys.create_key("u", "k2", plan="premium")
    for call in (store.keys.tenants.set_plan("u", "no-such"), store.keys.create_key("new", "k", plan="no-such")):
        with pytest.raises(BadRequest, match="no plan 'no-such'"):
            await call
    with pytest.raises(NotFound, match="no tenant"):
        await store.keys.tenants.set_plan("unknown", "batch")


async def test_a_new_pepper_takes_over_key_by_key(store: MarkedStore, redis_url: str) -> None:
    old_key = await store.keys.create_key("acme", "old")
    rotated = Peppers(current="another-pepper-of-16", current_id="2", older={"1": PEPPERS.current})
    new_key = await key_store(store.records, rotated).create_key("acme", "new")
    async with following(redis_url, peppers=rotated) as gateway:
        for key in (old_key, new_key):
            await gateway.keys.authenticate(key)
    async with following(redis_url) as behind:  # was not told the new pepper: it cannot say that the key is wrong
        with pytest.raises(DependencyDown):
            await behind.keys.authenticate(new_key)


async def test_two_installations_share_one_redis_without_seeing_each_other(
    store: MarkedStore, redis_url: str, tmp_path: Path
) -> None:
    other = await marked_store(store.redis, tmp_path / "other", RecordStoreConfig(prefix="other:eu"))
    key = await store.keys.create_key("acme", "a")
    foreign_key = await other.keys.create_key("acme", "a")
    assert other.store_id != store.store_id
    async with following(redis_url) as gateway, following(redis_url, prefix="other:eu") as foreign:
        await gateway.keys.authenticate(key)
        await foreign.keys.authenticate(foreign_key)
        with pytest.raises(InvalidApiKey):
            await gateway.keys.authenticate(foreign_key)
    with pytest.raises(BadRequest, match="prefix"):
        RecordStore(store.redis, RecordStoreConfig(prefix="no spaces"))


async def test_past_the_bound_keys_are_refused_where_that_is_set(redis_server: RedisServer, tmp_path: Path) -> None:
    async with open_redis(redis_server.url) as client:
        store = await marked_store(client, tmp_path / "objects")
        key = await store.keys.create_key("acme", "a")
    strict = SnapshotConfig(poll_s=0.02, revocation_bound_s=0.5, past_bound="refuse")
    async with following(redis_server.url, strict) as careful, following(redis_server.url) as lenient:
        await careful.keys.authenticate(key)
        redis_server.kill()
        await eventually(lambda: careful.follower.is_past_bound, "the bound has passed")
        with pytest.raises(DependencyDown):
            await careful.keys.authenticate(key)
        await lenient.keys.authenticate(key)


async def test_bad_input_is_refused(store: MarkedStore) -> None:
    with pytest.raises(BadRequest, match="at least 16"):
        Peppers(current="short")
    for tenant in ("", "Acme", "a:b", "x" * 65, "a\n"):
        with pytest.raises(BadRequest, match="tenant"):
            await store.keys.create_key(tenant, "k")
