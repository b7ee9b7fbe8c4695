"""Bodies that come slowly: what they cost their own client, and no other."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from stratos.core.ledger.entry import LedgerEntry
from stratos.core.tenancy.plan import BATCH
from stratos.core.tenant import Tenant
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.answering import edge
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.ledger.billing import LedgerAccess
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, OTHER_KEY, PLAN
from tests.support.worlds.gateway_world import gateway_world
from tests.support.worlds.raw_client import Client, head

UPLOAD_S = 0.5
BODY = json.dumps({"model": "base", "prompt": "x", "max_tokens": 2}).encode()


async def slow_upload(redis_url: str) -> tuple[int, float]:
    """The time to the first token in the ledger, and from the last byte to the answer; in microseconds."""
    async with open_redis(redis_url, timeout_s=5.0) as redis:
        store, reader = LedgerStore(redis, RecordStoreConfig()), UsageReader(redis, RecordStoreConfig())
        found: list[LedgerEntry] = []

        async def is_billed() -> bool:
            found[:] = [entry async for entry in reader.entries("one", f"{datetime.now(UTC):%Y-%m-%d}")]
            return bool(found)

        access = LedgerAccess(store=store, plan_of=lambda tenant: PLAN)
        async with gateway_world(ledger_access=access, ledger={"interval_s": 0.02}) as world, Client(world) as client:
            client.writer.write(head(len(BODY)) + BODY[:-1])
            await asyncio.sleep(UPLOAD_S)
            sent_s = time.monotonic()
            client.writer.write(BODY[-1:])
            assert (await client.answer())[0] == 200
            took_us = (time.monotonic() - sent_s) * 1e6
            await eventually(is_billed, "it is in the ledger")
    [entry] = found
    assert entry.times.ttft_us is not None
    return entry.times.ttft_us, took_us


async def test_the_time_of_a_clients_own_upload_breaks_no_promise(redis_url: str) -> None:
    """The first token came after the last byte was sent, and before the answer was there."""
    ttft_us, took_us = await slow_upload(redis_url)
    assert ttft_us <= took_us


async def test_times_that_count_from_the_arrival_would_be_found(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_arrival(**facts: Any) -> ClientRequest[Any]:
        return ClientRequest(**facts | {"received_s": facts["arrival_s"]})

    monkeypatch.setattr(edge, "ClientRequest", of_arrival)
    ttft_us, _ = await slow_upload(redis_url)
    assert ttft_us > UPLOAD_S * 1e6


async def test_a_body_that_stops_is_a_timeout_that_clients_repeat() -> None:
    async with gateway_world(http={"body_timeout_s": 0.05}) as world, Client(world) as client:
        client.writer.write(head(len(BODY)) + BODY[:-1])
        status, headers, body = await client.answer()
        error = body["error"]
        assert isinstance(error, dict)
        assert (status, error["code"], headers["connection"]) == (408, "request_timeout", "close")
        assert await client.is_ended()


async def test_bodies_that_drip_do_not_shut_the_door_for_others() -> None:
    """As many as there are places, of requests and of bodies: a request of a higher class is served at once."""
    limits = {"max_open": 16, "max_open_bodies": 16, "max_open_bodies_per_tenant": 16}
    async with gateway_world(requests=limits) as world, AsyncExitStack() as stack:
        world.keys.change_plan(KEY, priority_class=BATCH.priority_class)
        dripping = [await stack.enter_async_context(Client(world)) for _ in range(16)]
        for client in dripping:
            client.writer.write(head(len(BODY)) + BODY[:-1])
        await eventually(lambda: world.metric("stratos_request_bodies_open") == 16, "all are on their way")
        async with Client(world) as urgent:
            urgent.writer.write(head(len(BODY), OTHER_KEY) + BODY)
            assert (await urgent.answer())[0] == 200, "a body that is there needs no place"
        async with Client(world) as urgent:
            urgent.writer.write(head(len(BODY), OTHER_KEY) + BODY[:-1])
            assert (await dripping[-1].answer())[0] == 503, "the newest gave way to one that is on its way"
            urgent.writer.write(BODY[-1:])
            assert (await urgent.answer())[0] == 200
        dripping[0].writer.write(BODY[-1:])
        assert (await dripping[0].answer())[0] == 200, "the others go on"


async def test_as_many_bodies_as_there_are_places_drip_from_four_tenants_and_a_premium_request_is_served() -> None:
    """With the bounds that are set where none are given."""
    async with gateway_world() as world, AsyncExitStack() as stack:
        keys = [f"sk-batch-{number}" for number in range(4)]
        for key in keys:
            plan = replace(PLAN, priority_class=BATCH.priority_class)
            world.keys.tenants[key] = Tenant(name=key, cache_salt=key.encode(), plan=plan, key_id=key)
        dripping = [await stack.enter_async_context(Client(world)) for _ in range(512)]
        for number, client in enumerate(dripping):
            client.writer.write(head(len(BODY), keys[number % 4]) + BODY[:-1])
        await eventually(lambda: world.metric("stratos_request_bodies_open") == 512, "all are on their way")
        for piece in (len(BODY), len(BODY) - 1):  # whole with its head, and in two parts
            async with Client(world) as urgent:
                urgent.writer.write(head(len(BODY), OTHER_KEY) + BODY[:piece])
                if piece < len(BODY):
                    assert (await dripping[-1].answer())[0] == 503, "the newest gave way"
                    urgent.writer.write(BODY[piece:])
                assert (await urgent.answer())[0] == 200
        assert world.metric("stratos_request_bodies_open") == 511


def dicts_with(name: str, text: str) -> int:
    """Objects of JSON in this process that have such a field."""
    return sum(type(found) is dict and found.get(name) == text for found in gc.get_objects())


async def test_a_parsed_body_is_let_go_before_its_answer_streams() -> None:
    """One of many small values takes ten times its bytes, for as long as it is held."""
    mark = "a mark of this test alone"
    body = {"model": "base", "prompt": "x", "max_tokens": 3000, "stream": True, "logit_bias": {"7": 1}, "user": mark}
    async with gateway_world() as world, Client(world) as client:
        world.worker.script, world.worker.step_s = (lambda submit, choice: [9] * 3000), 0.01
        text = json.dumps(body).encode()
        del body
        client.writer.write(head(len(text)) + text)
        await client.reader.readuntil(b"data: ")
        await eventually(lambda: dicts_with("user", mark) == 0, "no part of the gateway holds it")
        assert world.metric("stratos_requests_open") == 1
