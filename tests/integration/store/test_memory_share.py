"""A Redis that usage has filled: the ledger stops, and whoever has to be let in or kept out is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.counters.leases import LeaseAsk, LeaseStore
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.memory_share import MemoryShare
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.servers.record_stores import MarkedStore, marked_store
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.support.worlds.usage_counts import ENTRY

CONFIG = RecordStoreConfig()
MAX_BYTES = 8 * 1024 * 1024
ASK = LeaseAsk(bucket="acme", capacity=600.0, rate_per_s=10.0, wish=5.0)


@dataclass
class Full:
    """A store whose Redis has 8 MiB, and the ledger in it."""

    store: MarkedStore
    ledger: LedgerStore
    clock: FakeClock
    share: MemoryShare
    looks: list[float]
    files: list[bool]
    num_written: int = 0

    async def fill(self, most: int = 40_000) -> None:
        """Write entries until the ledger takes no more."""
        while self.num_written < most:
            batch = [replace(ENTRY, request_id=f"gen-{self.num_written + n:024}") for n in range(256)]
            await self.ledger.write(batch)
            self.num_written += len(batch)
            self.clock.advance(0.5)


@pytest.fixture
async def full(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Full]:
    async with open_redis(redis_server.url) as redis:
        await redis.config_set("maxmemory", MAX_BYTES)
        await redis.config_set("maxmemory-policy", "noeviction")
        clock, looks, files = FakeClock(), list[float](), list[bool]()
        store = await marked_store(redis, tmp_path / "objects")
        share = MemoryShare(redis, 0.8, clock, looks.append, files.append)
        yield Full(store, LedgerStore(redis, CONFIG, share=share), clock, share, looks, files)


async def test_keys_suspensions_and_limits_have_room_when_the_ledger_has_none(full: Full) -> None:
    with pytest.raises(DependencyDown, match="not for the ledger"):
        await full.fill()
    assert full.num_written > 1000
    assert 0.8 <= full.looks[-1] < 0.95
    keys = [await full.store.keys.create_key("acme", f"key-{number}") for number in range(50)]
    assert len(set(keys)) == 50
    for is_suspended in (True, False) * 10:
        await full.store.keys.tenants.suspend("acme", is_suspended=is_suspended)
    leases = LeaseStore(full.store.redis, CONFIG, "gateway")
    assert (await leases.lease([ASK], 3.0)).grants[0].held > 0


@pytest.mark.slow
async def test_a_ledger_without_a_share_leaves_no_room_for_keys(full: Full) -> None:
    """The defect that the test before is there for, planted."""
    full.ledger = LedgerStore(full.store.redis, CONFIG, share=MemoryShare(full.store.redis, 2.0, full.clock))
    with pytest.raises((DependencyDown, RedisError)):
        await full.fill()

    async def create_keys() -> None:
        for number in range(2_000):
            await full.store.keys.create_key("acme", f"key-{number}")

    with pytest.raises((DependencyDown, RedisError)):
        await create_keys()


async def test_it_goes_on_when_there_is_room_again(full: Full) -> None:
    with pytest.raises(DependencyDown):
        await full.fill()
    await full.store.redis.config_set("maxmemory", 2 * MAX_BYTES)
    with pytest.raises(DependencyDown):
        await full.ledger.write([ENTRY])
    full.clock.advance(1.0)
    assert [written.is_new for written in await full.ledger.write([ENTRY])] == [True]


async def test_without_a_bound_nothing_is_refused(full: Full) -> None:
    await full.store.redis.config_set("maxmemory", 0)
    await full.ledger.write([ENTRY])
    assert full.looks == [0.0]
    assert full.ledger.server == (await full.store.redis.info("server"))["run_id"]


async def test_a_file_that_redis_cannot_write_is_told(full: Full) -> None:
    redis, share = full.store.redis, full.share
    config = await redis.config_get("dir") | await redis.config_get("dbfilename")
    file = Path(config["dir"]) / config["dbfilename"]
    await share.check()
    file.unlink(missing_ok=True)
    file.mkdir()  # nothing can be moved to its place
    await _save(redis)
    full.clock.advance(1.0)
    await share.check()
    file.rmdir()
    await _save(redis)
    full.clock.advance(1.0)
    await share.check()
    assert full.files == [False, True, False]


async def _save(redis: Redis) -> None:
    """Let Redis write its file, or try to."""
    await redis.bgsave()

    async def has_ended() -> bool:
        return not (await redis.info("persistence"))["rdb_bgsave_in_progress"]

    await eventually(has_ended, "the end of the attempt")
