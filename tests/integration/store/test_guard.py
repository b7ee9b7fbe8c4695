"""What gateways write beside the records gets into the followed store alone, whenever another one takes its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.store.counters.guard import StoreId
from stratos.store.counters.key_use import KeyUse
from stratos.store.counters.leases import LeaseAsk, LeaseStore
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.worlds.usage_counts import ENTRY

CONFIG = RecordStoreConfig()
MARKER = f"{CONFIG.prefix}:store"
WORKER = WorkerRef(worker_id="decode-0", incarnation="i", address="127.0.0.1:1", role=WorkerRole.DECODE)
ASK = LeaseAsk(bucket="requests:base:acme", capacity=10, rate_per_s=1, wish=1, least=1)
Write = Callable[[], Awaitable[object]]


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as redis:
        yield redis


def writes(redis: Redis, store_id: StoreId) -> list[Write]:
    """Of every store that gateways write without being asked."""
    ledger, uses = LedgerStore(redis, CONFIG, store_id=store_id), KeyUse(redis, CONFIG, store_id)
    uses.note_use("key")
    leases = LeaseStore(redis, CONFIG, "gateway", store_id)
    return [
        lambda: ledger.write([ENTRY]),
        lambda: ledger.note_workers([WORKER]),
        uses.flush,
        lambda: leases.lease([ASK], 1.0),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("marker", [None, "another"])
async def test_another_store_and_an_emptied_one_stay_as_they_are(redis: Redis, marker: str | None, place: int) -> None:
    if marker is not None:
        await redis.hset(MARKER, "id", marker)
    before = await redis.dbsize()
    with pytest.raises(DependencyDown, match="emptied, or holds another store"):
        await writes(redis, lambda: "ours")[place]()
    assert await redis.dbsize() == before


@pytest.mark.parametrize("place", range(4))
async def test_the_followed_store_takes_them_and_none_does_before_it_is_known(redis: Redis, place: int) -> None:
    await redis.hset(MARKER, "id", "ours")
    with pytest.raises(DependencyDown, match="not been read yet"):
        await writes(redis, lambda: None)[place]()
    assert await redis.dbsize() == 1
    await writes(redis, lambda: "ours")[place]()
    assert await redis.dbsize() > 1
