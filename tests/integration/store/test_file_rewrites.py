"""Redis' own files after a deletion: a destroyed data key leaves them, at a pace, by whichever gateway is first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.data_keys import DataKeyRecord, PlatformKeys
from stratos.store.key_store import KeyStore
from stratos.store.records.record import Kind
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.sealed.file_rewrites import MIN_GAP_S, FileRewrites
from stratos.store.tenancy.deletion import delete_tenant
from tests.support.servers.record_stores import PEPPERS, MarkedStore, marked_store
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import eventually

CONFIG = RecordStoreConfig()
PLATFORM = PlatformKeys(current=bytes(range(32)))
SETTLE_S = 0.001


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with open_redis(redis_server.url) as client:
        await client.config_set("save", "")
        await client.config_set("auto-aof-rewrite-percentage", 0)
        yield client


@pytest.fixture
async def store(redis: Redis, tmp_path: Path) -> MarkedStore:
    return await marked_store(redis, tmp_path / "objects")


def rewrites(redis: Redis, clock: FakeClock) -> FileRewrites:
    return FileRewrites(redis, CONFIG, clock, SETTLE_S)


async def num_rewrites(redis: Redis) -> int:
    """Rewrites that Redis has ended since its start."""
    found = await redis.info("persistence")
    assert not found["aof_rewrite_scheduled"]
    return int((await redis.info("commandstats")).get("cmdstat_bgrewriteaof", {"calls": 0})["calls"])


async def files(redis: Redis) -> bytes:
    return _content(Path((await redis.config_get("dir"))["dir"]))


def _content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def is_idle(redis: Redis) -> bool:
    found = await redis.info("persistence")
    return not (found["aof_rewrite_in_progress"] or found["rdb_bgsave_in_progress"])


async def test_a_destroyed_key_leaves_the_files(redis: Redis, store: MarkedStore) -> None:
    writer = RecordWriter(store.records, actor="key:ops")
    await KeyStore(writer, PEPPERS, platform=PLATFORM).create_key("acme", "k")
    (record,) = await store.records.records(Kind.DATA_KEY)
    assert isinstance(record.value, DataKeyRecord)
    wrapped = record.value.wrapped.hex().encode()
    gone = await delete_tenant(writer, "acme")
    assert wrapped in await files(redis), "the append-only file has what was written"
    assert await rewrites(redis, FakeClock()).forget(gone.id)

    async def is_gone() -> bool:
        return await is_idle(redis) and wrapped not in await files(redis)

    await eventually(is_gone, "the files are rewritten")


async def test_a_dump_that_the_server_makes_is_made_again(redis: Redis, store: MarkedStore) -> None:
    await redis.config_set("save", "3600 1")
    saved = await redis.lastsave()
    assert await rewrites(redis, FakeClock()).forget("tn_1")
    assert "cmdstat_bgsave" in await redis.info("commandstats")
    await eventually(lambda: is_idle(redis), "both are written")
    assert await redis.lastsave() >= saved


async def test_one_rewrite_serves_all_gateways_and_deletions_before_it(redis: Redis, store: MarkedStore) -> None:
    before, clocks = await num_rewrites(redis), [FakeClock(), FakeClock()]
    first, second = (rewrites(redis, clock) for clock in clocks)
    assert await first.forget("tn_1")
    await eventually(lambda: is_idle(redis), "it has ended")
    clocks[1].advance(1.0)
    assert not await second.forget("tn_2"), "it began before this tenant was deleted, as far as is known"
    clocks[1].advance(3600.0)
    assert await second.forget("tn_2") is True, "asked again, it is known for longer than the last rewrite"
    assert await num_rewrites(redis) == before + 1


async def test_rewrites_keep_their_gap(redis: Redis, store: MarkedStore) -> None:
    asked, before = rewrites(redis, FakeClock()), await num_rewrites(redis)
    assert await asked.forget("tn_1")
    assert [await asked.forget(f"tn_{number}") for number in range(2, 6)] == [False] * 4
    assert await num_rewrites(redis) == before + 1
    began_us = int(await redis.get(f"{CONFIG.prefix}:files-rewritten"))
    await redis.set(f"{CONFIG.prefix}:files-rewritten", began_us - round(1e6 * (MIN_GAP_S + 1)))
    await eventually(lambda: is_idle(redis), "the first one has ended")
    assert await asked.forget("tn_2")
    assert await num_rewrites(redis) == before + 2


async def test_a_server_that_refuses_is_asked_once(
    redis: Redis, store: MarkedStore, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-bgrewriteaof", "-config")
    async with open_redis(redis_server.url.replace("redis://", "redis://app:secret@")) as bound:
        asked, before = rewrites(bound, FakeClock()), await num_rewrites(redis)
        assert [await asked.forget(name) for name in ("tn_1", "tn_2")] == [True, True]
        assert await num_rewrites(redis) == before
    assert caplog.text.count("does not let gateways rewrite its files") == 1


async def test_an_emptied_redis_is_left_as_it_is(redis: Redis) -> None:
    asked = FileRewrites(redis, CONFIG, FakeClock(), SETTLE_S, lambda: "followed")
    before = await num_rewrites(redis)
    with pytest.raises(DependencyDown):
        await asked.forget("tn_1")
    assert await num_rewrites(redis) == before
