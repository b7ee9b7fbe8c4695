"""Statements over the admin API: windows of missed promises from their sums, and from entries where there are none."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from stratos.core.ledger.entry import LedgerEntry, day_of
from stratos.core.ledger.pricing import Amounts
from stratos.core.ledger.steps import bucket_of
from stratos.core.ledger.windows import Sample, WindowShare
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.usage_counts import ENTRY, TAG

SPAN_MS = 300_000


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(redis_url, tmp_path) as world:
        yield world


def promised(number: int, tenant: str, *, is_kept: bool) -> LedgerEntry:
    """One request of each five minutes of a day."""
    tag = replace(TAG, arrived_unix_ms=TAG.arrived_unix_ms + number * SPAN_MS)
    amounts = Amounts(gross=100, credit=0 if is_kept else 10)
    return replace(ENTRY, request_id=f"gen-{number}", tenant=tenant, tag=tag, amounts=amounts, is_kept=is_kept)


async def test_a_statement_has_the_windows_of_a_day_whether_summed_or_from_an_older_version(
    admin: AdminWorld, redis_url: str
) -> None:
    tenant = (await admin.call("GET", "/tenants/acme")).json()["id"]
    async with open_redis(redis_url) as redis:
        store = LedgerStore(redis, RecordStoreConfig())
        await store.write([promised(number, tenant, is_kept=number not in (3, 4, 9)) for number in range(288)])
        month = ENTRY.day[:7]
        summed = (await admin.call("GET", "/statement", by="owner", month=month)).json()
        assert [
            ((window["begin_unix_ms"] - TAG.arrived_unix_ms) // SPAN_MS, window["num_requests"], window["credit"])
            for window in summed["violation_windows"]
        ] == [(3, 2, 20), (9, 1, 10)]
        assert summed["due"] == 288 * 100 - 30
        await redis.delete(f"stratos:ledger:spans:{tenant}:{ENTRY.day}")
    older = (await admin.call("GET", "/statement", by="owner", month=month)).json()
    assert older == summed


async def test_a_statement_names_the_windows_that_missed_a_p99_and_takes_their_credit_off(
    admin: AdminWorld, redis_url: str
) -> None:
    tenant = (await admin.call("GET", "/tenants/acme")).json()["id"]
    begin_ms = int(time.time() * 1000) // SPAN_MS * SPAN_MS
    tag, month = replace(TAG, arrived_unix_ms=begin_ms), day_of(begin_ms)[:7]
    late, kept = [
        WindowShare(window_s=300, ttft=Sample(bucket=bucket_of(700_000), is_over=is_over), stake=100 * 8)
        for is_over in (True, False)
    ]
    entries = [
        replace(ENTRY, request_id=f"gen-{n}", tenant=tenant, tag=tag, window=late if n == 0 else kept) for n in range(5)
    ]
    async with open_redis(redis_url) as redis:
        await LedgerStore(redis, RecordStoreConfig()).write(entries)
    found = (await admin.call("GET", "/statement", by="owner", month=month)).json()
    (missed,) = found["p99_windows"].pop("missed")
    assert found["p99_windows"] == {"windows": 1, "missed_windows": 1, "window_credit": 5 * 8}
    assert (missed["begin_unix_ms"], missed["end_unix_ms"]) == (begin_ms, begin_ms + SPAN_MS)
    assert (missed["plan"], missed["num_ttft"], missed["num_ttft_over"], missed["credit"]) == ("premium", 5, 1, 40)
    assert [line["model"] for line in found["lines"]] == ["base"], "credits of windows are of no model"
    assert found["due"] == 5 * ENTRY.amounts.due - 40
    usage = (await admin.call("GET", "/usage", by="owner", start=entries[0].day, end=entries[0].day)).json()
    assert (usage["total"]["due"], usage["total"]["window_credit"]) == (found["due"], 40)
    query = {"start": entries[0].day, "end": entries[0].day, "group_by": "model"}
    rows = (await admin.call("GET", "/usage", by="owner", **query)).json()["data"]
    assert [(row["model"], row["requests"], row["window_credit"]) for row in rows] == [("", 0, 40), ("base", 5, 0)]
    costs = (await admin.call("GET", "/costs", month=month)).json()["data"]
    assert sum(row["earned"] for row in costs) == found["due"]


async def test_costs_are_told_by_a_tag_of_all_tenants(admin: AdminWorld, redis_url: str) -> None:
    acme, month = (await admin.call("GET", "/tenants/acme")).json()["id"], ENTRY.day[:7]
    teams = [(acme, {"team": "search"}), (acme, {}), ("another", {"team": "search"})]
    entries = [
        replace(ENTRY, request_id=f"gen-{n}", tenant=tenant, tag=replace(TAG, cost_tags=tags))
        for n, (tenant, tags) in enumerate(teams)
    ]
    async with open_redis(redis_url) as redis:
        await LedgerStore(redis, RecordStoreConfig()).write(entries)
    query = {"month": month, "hour_price": "2000000"}
    (whole,) = (await admin.call("GET", "/costs", **query)).json()["data"]
    rows = (await admin.call("GET", "/costs", **query, group_by="tag:team")).json()["data"]
    assert [(row["model"], row["tag:team"]) for row in rows] == [("base", ""), ("base", "search")]
    assert [row["num_tokens"] for row in rows] == [whole["num_tokens"] // 3, whole["num_tokens"] // 3 * 2]
    assert sum(row["device_us"] for row in rows) == whole["device_us"]
    assert sum(row["earned"] for row in rows) == whole["earned"]
