"""Metadata of requests as cost tags: in the ledger with each entry, and what usage is grouped by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from stratos.common.clock import SystemClock
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.usage import MAX_COST_TAG_CHARS, MAX_COST_TAGS
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.ledger.readings import UsageReadings
from tests.support.worlds.gateway_keys import PLAN
from tests.support.worlds.gateway_world import World, gateway_world

CONFIG = RecordStoreConfig()
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}
"""Those whose requests have metadata; that of messages is the name of a user."""


@dataclass
class Bench:
    world: World
    reader: UsageReader

    async def ask(self, route: str = "/v1/completions", **more: Any) -> str:
        answer = await self.world.http.post(route, json={"model": "base", **ROUTES[route], **more})
        assert answer.status_code == 200, answer.text
        return answer.headers.get("x-stratos-ignored", "")

    async def entries(self, number: int) -> list[LedgerEntry]:
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        while len(found := [entry async for entry in self.reader.entries("one", day)]) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return found

    async def usage(self, group_by: str) -> list[dict[str, Any]]:
        answer = await self.world.http.get("/v1/usage", params={"group_by": group_by})
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows


@pytest.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        reader = UsageReader(redis, CONFIG)
        access = LedgerAccess(
            store=LedgerStore(redis, CONFIG),
            plan_of=lambda tenant: PLAN,
            readings=UsageReadings(reader, SystemClock(), 60),
        )
        world = await stack.enter_async_context(gateway_world(ledger_access=access, ledger={"interval_s": 0.02}))
        yield Bench(world, reader)


@pytest.mark.parametrize("route", ROUTES)
async def test_metadata_is_in_the_ledger_and_at_the_worker(bench: Bench, route: str) -> None:
    assert await bench.ask(route, metadata={"team": "search", "step": "é"}) == ""
    (entry,) = await bench.entries(1)
    assert entry.tag.cost_tags == {"team": "search", "step": "é"}
    assert dict(bench.world.worker.submits[0].meter.cost_tags) == entry.tag.cost_tags, "it outlives this gateway"


async def test_usage_is_grouped_by_a_tag_and_adds_up(bench: Bench) -> None:
    for team in ("search", "ads", "search"):
        await bench.ask(metadata={"team": team, "stage": "test"})
    await bench.ask()
    await bench.entries(4)
    rows = await bench.usage("tag:team")
    assert [(row["tag:team"], row["requests"]) for row in rows] == [("", 1), ("ads", 1), ("search", 2)]
    both = await bench.usage("model,tag:stage,tag:team")
    assert [(row["model"], row["tag:stage"], row["tag:team"]) for row in both] == [
        ("base", "", ""),
        ("base", "test", "ads"),
        ("base", "test", "search"),
    ]
    (whole,) = await bench.usage("model")
    assert sum(row["prompt_tokens"] for row in rows) == whole["prompt_tokens"]
    shown = await bench.world.http.get("/v1/usage", params={"group_by": "tag:team", "format": "csv"})
    assert shown.text.splitlines()[0].startswith("tag:team,requests,")


async def test_what_is_no_tag_is_named_and_a_wrong_name_refused(bench: Bench) -> None:
    long = {"note": "x" * (MAX_COST_TAG_CHARS + 1), "team": "ads"}
    assert await bench.ask(metadata=long) == "metadata"
    many = {f"k{number}": "v" for number in range(MAX_COST_TAGS + 1)}
    assert await bench.ask(metadata=many) == "metadata"
    tags = sorted(len(entry.tag.cost_tags) for entry in await bench.entries(2))
    assert tags == [1, MAX_COST_TAGS]
    for wrong in ("tag:", "tag:" + "x" * (MAX_COST_TAG_CHARS + 1)):
        answer = await bench.world.http.get("/v1/usage", params={"group_by": wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "group_by")
