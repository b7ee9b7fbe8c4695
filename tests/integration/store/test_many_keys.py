"""Idempotency keys of one tenant in a real Redis: so many and no more, and no other tenant loses one."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from stratos.store.data_keys import Purpose
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamBounds, StreamStore, StreamWrite
from stratos_gateway.streams.settings import StreamsConfig
from tests.support.waiting import eventually

GREEDY, OTHER = "tn_greedy", "tn_other"
_AT_ONCE = 8
_KEY_BYTES = 600
"""Most memory of one key in Redis: its request of a few words, and its answer."""


def open_store(redis: Redis, **changes: float) -> StreamStore:
    config = StreamsConfig()
    bounds = StreamBounds(
        lease_s=60.0,
        kept_s=changes.pop("kept_s", config.kept_s),
        tenant_bytes=config.tenant_bytes,
        tenant_streams=int(changes.pop("tenant_streams", config.tenant_streams)),
    )

    def sub_key(tenant: str, purpose: Purpose) -> bytes:
        return bytes(32)

    return StreamStore(redis, RecordStoreConfig(), bounds, "one", sub_key)


async def use(store: StreamStore, tenant: str, number: int) -> Found:
    """A request with a key, whose answer is kept where there was none."""
    ask = StreamAsk(tenant_id=tenant, stream_id=f"strm_{number:032}", fingerprint="f", head=b"-")
    found = await store.open(ask)
    if found.found is Found.MADE:
        own = {"tenant_id": tenant, "stream_id": ask.stream_id, "epoch": found.epoch}
        await store.write([StreamWrite(**own, ends="d", end=b"an answer of a few words")])
    return found.found


async def use_many(store: StreamStore, tenant: str, numbers: range) -> None:
    for begin in range(numbers.start, numbers.stop, _AT_ONCE):
        some = range(begin, min(begin + _AT_ONCE, numbers.stop))
        assert set(await asyncio.gather(*(use(store, tenant, number) for number in some))) == {Found.MADE}


async def num_bytes(redis: Redis, tenant: str) -> int:
    names = [f"stratos:streams:{tenant}{end}" for end in ("", ":until", ":bytes")]
    return sum([await redis.memory_usage(name, samples=0) or 0 for name in names])


@pytest.mark.parametrize(
    ("num", "most"),
    [
        (600, 120),
        pytest.param(100_000, StreamsConfig().tenant_streams, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
async def test_a_tenant_has_so_many_keys_and_its_neighbour_keeps_its_own(redis_url: str, num: int, most: int) -> None:
    """The oldest ones go: their requests are new ones again, and those of the newest have their answers."""
    async with open_redis(redis_url) as redis:
        store = open_store(redis, tenant_streams=most)
        await use_many(store, OTHER, range(9))
        await use_many(store, GREEDY, range(num))
        assert await redis.zcard(f"stratos:streams:{GREEDY}:until") == most
        assert await redis.hlen(f"stratos:streams:{GREEDY}") == 3 * most, "meta, head and end of each, and no other"
        assert await num_bytes(redis, GREEDY) < most * _KEY_BYTES
        assert [await use(store, OTHER, number) for number in range(9)] == [Found.DONE] * 9
        newest = num - most + _AT_ONCE, num - 1  # those that come at once are in no order
        assert [await use(store, GREEDY, number) for number in newest] == [Found.DONE] * 2
        assert await use(store, GREEDY, 0) is Found.MADE, "its key was dropped"


async def test_keys_whose_time_is_over_make_room(redis_url: str) -> None:
    async with open_redis(redis_url) as redis:
        store = open_store(redis, kept_s=0.2, tenant_streams=300)
        await use_many(store, GREEDY, range(300))
        lasting = open_store(redis, tenant_streams=300)
        await use_many(lasting, OTHER, range(1))

        async def is_over() -> bool:
            return not await redis.zcount(f"stratos:streams:{GREEDY}:until", await now_ms(redis), "+inf")

        await eventually(is_over, "the time of all keys is over")
        await use_many(lasting, GREEDY, range(1000, 1300))
        assert await redis.zcard(f"stratos:streams:{GREEDY}:until") == 300
        assert [await use(lasting, GREEDY, number) for number in (1000, 1299)] == [Found.DONE] * 2, "none had to go"
        assert await use(lasting, GREEDY, 0) is Found.MADE
        assert await use(lasting, OTHER, 0) is Found.DONE


async def now_ms(redis: Redis) -> int:
    seconds, micros = await redis.time()
    return int(seconds) * 1000 + int(micros) // 1000
