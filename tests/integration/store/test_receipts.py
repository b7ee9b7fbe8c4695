"""Receipts in a real Redis: found by tenant and id, bounded by bytes and age, gone with their tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from stratos.core.ledger.receipt import CLAIMED_RANK, MAX_TEXT, RequestReceipt, request_receipt
from stratos.store.ledger.receipt_store import ReceiptStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis

CONFIG = RecordStoreConfig()
DAY_S = 24 * 3600


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as connection:
        yield connection


def receipt(request_id: str, tenant: str = "acme", status: int = 200, **fields: int) -> RequestReceipt:
    return request_receipt(tenant, request_id, {"answer": {"status": status}}, **fields)


async def test_a_receipt_is_its_tenants_alone_and_the_latest_of_an_id(redis: Redis) -> None:
    store = ReceiptStore(redis, CONFIG, 2**20, DAY_S)
    await store.put([receipt("req-1"), receipt("req-1", "bravo", 429)])
    await store.put([receipt("req-1", status=503)])
    assert await store.find("acme", "req-1") == {"answer": {"status": 503}}
    assert await store.find("bravo", "req-1") == {"answer": {"status": 429}}
    assert await store.find("acme", "req-2") is None


async def test_a_claim_never_takes_the_place_of_what_its_gateway_wrote(redis: Redis) -> None:
    store = ReceiptStore(redis, CONFIG, 2**20, DAY_S)
    claim = receipt("req-1", status=0, rank=CLAIMED_RANK)
    await store.put([claim])
    assert await store.find("acme", "req-1") == {"answer": {"status": 0}}
    await store.put([receipt("req-1"), claim])
    assert await store.find("acme", "req-1") == {"answer": {"status": 200}}


async def test_the_oldest_go_where_the_bytes_end(redis: Redis) -> None:
    """And what is counted stays what is there, over overwriting and removal."""
    big = {"generations": ["x" * (MAX_TEXT // 2)]}
    store = ReceiptStore(redis, CONFIG, 10 * MAX_TEXT, DAY_S)
    for number in range(40):
        await store.put([request_receipt("acme", f"req-{number:02}", big)])
    kept = sorted(await redis.hkeys(f"{CONFIG.prefix}:ledger:receipts"))
    assert 10 <= len(kept) < 20
    assert kept == [f"acme/req-{number:02}" for number in range(40 - len(kept), 40)]
    before = int(await redis.get(f"{CONFIG.prefix}:ledger:receipts:bytes"))
    await store.put([request_receipt("acme", "req-39", big)])
    assert int(await redis.get(f"{CONFIG.prefix}:ledger:receipts:bytes")) == before
    await store.forget("acme")
    assert int(await redis.get(f"{CONFIG.prefix}:ledger:receipts:bytes")) == 0


async def test_a_receipt_goes_with_its_age(redis: Redis) -> None:
    await ReceiptStore(redis, CONFIG, 2**20, DAY_S).put([receipt("old")])
    await redis.zincrby(f"{CONFIG.prefix}:ledger:receipts:order", -2000, "acme/old")
    store = ReceiptStore(redis, CONFIG, 2**20, 1)
    await store.put([receipt("new")])
    assert await store.find("acme", "old") is None
    assert await store.find("acme", "new") is not None


async def test_a_deleted_tenants_receipts_go_and_no_others(redis: Redis) -> None:
    store = ReceiptStore(redis, CONFIG, 2**20, DAY_S)
    await store.put([receipt(f"req-{number}", tenant) for number in range(700) for tenant in ("acme", "acme-2")])
    await store.forget("acme")
    assert await store.find("acme", "req-5") is None
    assert await store.find("acme-2", "req-5") is not None
    assert await redis.zcard(f"{CONFIG.prefix}:ledger:receipts:order") == 700
