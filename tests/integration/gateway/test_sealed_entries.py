"""A gateway that moves its ledger's entries to the object store: what people see of them stays the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.money.ledger_files import entries_of_month, write_entries
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.local_store import LocalStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.usage_counts import ENTRY, TAG

QUICK = {"interval_s": 0.02, "count_wait_s": 0.1, "seal_interval_s": 0.1, "seal_poll_s": 0.05}


@pytest.fixture
async def admin(redis_url: str, tmp_path: Path) -> AsyncIterator[AdminWorld]:
    objects = {"url": f"file://{tmp_path / 'objects'}"}
    async with admin_world(redis_url, tmp_path, object_store=objects, ledger=QUICK) as world:
        yield world


async def all_pages(admin: AdminWorld, day: str) -> list[dict[str, Any]]:
    rows, cursor = [], "0"
    while True:
        page = (await admin.call("GET", "/ledger", by="owner", day=day, cursor=cursor)).json()
        rows += page["data"]
        if not page["next_cursor"]:
            return rows
        cursor = page["next_cursor"]


async def test_an_entry_is_listed_billed_and_summed_after_it_has_left_redis(admin: AdminWorld, redis_url: str) -> None:
    headers = {"authorization": f"Bearer {admin.keys['owner']}", "x-request-id": "mine"}
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 3}
    assert (await admin.public.post("/v1/completions", json=body, headers=headers)).status_code == 200
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    tenant = (await admin.call("GET", "/tenants/acme")).json()["id"]
    async with open_redis(redis_url) as redis:
        await eventually(lambda: redis.hexists("stratos:ledger:chain", "cleared"), "a segment has it")
        assert await redis.exists(f"stratos:ledger:entries:{tenant}:{day}") == 0
    (row,) = await all_pages(admin, day)
    assert (row["tenant"], row["prompt_tokens"], row["output_tokens"]) == ("acme", 3, 3)

    async def is_receipted() -> bool:
        receipt = await admin.public.get("/v1/requests/mine/receipt", headers=headers)
        return [entry["request_id"] for entry in receipt.json().get("billed", ())] == [row["request_id"]]

    await eventually(is_receipted, "its receipt is written, and names the entry")
    usage = (await admin.call("GET", "/usage", by="owner", start=day, end=day)).json()
    assert usage["total"]["requests"] == 1


async def test_a_day_of_many_entries_has_pages_in_their_order_from_redis_and_segments(
    admin: AdminWorld, redis_url: str, tmp_path: Path
) -> None:
    tenant = (await admin.call("GET", "/tenants/acme")).json()["id"]
    made = [
        replace(
            ENTRY,
            request_id=f"gen-{n}",
            tenant=tenant,
            tag=replace(TAG, arrived_unix_ms=TAG.arrived_unix_ms + n),
            prefix_hashes="k5Vt+/aB" * (n % 2),
        )
        for n in range(2300)
    ]
    async with open_redis(redis_url) as redis:
        store = LedgerStore(redis, RecordStoreConfig(), segments=SegmentStore(LocalStore(tmp_path / "objects")))
        await store.write(made[:700])
        await store.write(made[700:])
        rows = await all_pages(admin, ENTRY.day)
        assert [row["request_id"] for row in rows] == [one.request_id for one in made]
        assert [row.get("prefix_hashes", "") for row in rows] == [one.prefix_hashes for one in made]

    class Client:
        def call(self, method: str, path: str, **query: str) -> dict[str, Any]:
            return {"data": rows if query["day"] == ENTRY.day else [], "next_cursor": 0}

    path = tmp_path / "acme.csv"
    assert write_entries(path, "csv", entries_of_month(Client(), "", ENTRY.day[:7])) == 2300  # type: ignore[arg-type]
    assert len(path.read_text().splitlines()) == 2301


@pytest.mark.parametrize("cursor", ["x", "-1", "-", "1e9-a"])
async def test_a_cursor_that_no_answer_gave_is_refused(admin: AdminWorld, cursor: str) -> None:
    answer = await admin.call("GET", "/ledger", by="owner", day=ENTRY.day, cursor=cursor)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cursor")
