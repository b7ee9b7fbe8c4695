"""Bodies that come slowly: what they cost their own client, and no other."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

from stratos.core.ledger.entry import LedgerEntry
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import PLAN
from tests.support.worlds.gateway_world import gateway_world
from tests.support.worlds.raw_client import Client, head

BODY = json.dumps({"model": "base", "prompt": "x", "max_tokens": 2}).encode()


async def test_the_time_of_a_clients_own_upload_breaks_no_promise(redis_url: str) -> None:
    """The first token came after the last byte was sent, and before the answer was there."""
    async with open_redis(redis_url, timeout_s=5.0) as redis:
        store = LedgerStore(redis, RecordStoreConfig())
        found: list[LedgerEntry] = []

        async def is_billed() -> bool:
            found[:] = [entry async for entry in store.entries("one", f"{datetime.now(UTC):%Y-%m-%d}")]
            return bool(found)

        access = LedgerAccess(store=store, plan_of=lambda tenant: PLAN)
        async with gateway_world(ledger_access=access, ledger={"interval_s": 0.02}) as world, Client(world) as client:
            client.writer.write(head(len(BODY)) + BODY[:-1])
            await asyncio.sleep(0.5)
            sent_s = time.monotonic()
            client.writer.write(BODY[-1:])
            assert (await client.answer())[0] == 200
            took_us = (time.monotonic() - sent_s) * 1e6
            await eventually(is_billed, "it is in the ledger")
    [entry] = found
    assert entry.times.ttft_us is not None
    assert entry.times.ttft_us <= took_us


async def test_a_body_that_stops_is_a_timeout_that_clients_repeat() -> None:
    async with gateway_world(http={"body_timeout_s": 0.05}) as world, Client(world) as client:
        client.writer.write(head(len(BODY)) + BODY[:-1])
        status, headers, body = await client.answer()
        error = body["error"]
        assert isinstance(error, dict)
        assert (status, error["code"], headers["connection"]) == (408, "request_timeout", "close")
        assert await client.is_ended()
