"""A batch while one of two gateways, real processes, is killed: every line is there once, and billed once, at half."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import orjson
import pytest

from stratos.core.ledger.entry import OWN_RANK
from tests.integration.platform.replicated.test_ledger import client_of, ledger_of
from tests.integration.platform.replicated.test_streams import busiest_gateway, own_entries_of, until_recorded
from tests.support.waiting import eventually, rounds
from tests.support.worlds.platform_process import PlatformProcess

NUM_LINES = 60
ENDPOINT = "/v1/completions"
CLOSE = {"connection": "close"}


async def ask(http: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
    """At whichever gateway lives; what is asked here may be asked again."""
    while True:
        try:
            answer = await http.request(method, path, headers=CLOSE, timeout=10, **more)
        except httpx.HTTPError:
            continue
        if answer.status_code == 503:  # a gateway that had no time for its store says so
            continue
        assert answer.status_code == 200, answer.text
        return answer


async def submit(http: httpx.AsyncClient, num_lines: int = NUM_LINES, max_tokens: int = 20) -> str:
    terms = {"max_tokens": max_tokens, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    body = {"model": "base", "prompt": "go", **terms}
    rows = ({"custom_id": f"c{n}", "method": "POST", "url": ENDPOINT, "body": body} for n in range(num_lines))
    content = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    file = (await ask(http, "POST", "/files", **form)).json()["id"]
    asked = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}
    return str((await ask(http, "POST", "/batches", json=asked)).json()["id"])


async def texts_of(http: httpx.AsyncClient, batch_id: str) -> list[tuple[str, str]]:
    """Ids and texts of all lines, once the batch has ended."""

    async def has_ended() -> bool:
        return (await ask(http, "GET", f"/batches/{batch_id}")).json()["status"] == "completed"

    await eventually(has_ended, "the batch is completed")
    file = (await ask(http, "GET", f"/batches/{batch_id}")).json()["output_file_id"]
    rows = [orjson.loads(line) for line in (await ask(http, "GET", f"/files/{file}/content")).content.splitlines()]
    return [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in rows]


async def has_begun(http: httpx.AsyncClient, batch_id: str) -> bool:
    return bool((await ask(http, "GET", f"/batches/{batch_id}")).json()["status"] == "in_progress")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_batch_outlives_a_killed_gateway(platform: PlatformProcess) -> None:
    """In rounds, until a slice was computed again."""
    async with client_of(platform) as http, ledger_of(platform) as ledger:
        await until_recorded(http)
        undisturbed = await texts_of(http, await submit(http))
        assert [name for name, _ in undisturbed] == [f"c{number}" for number in range(NUM_LINES)]
        for _ in rounds("a slice that was computed again"):
            await asyncio.to_thread(platform.until_killable, "gateway-")
            batch_id = await submit(http)
            await eventually(partial(has_begun, http, batch_id), "it is computed")
            (await asyncio.to_thread(busiest_gateway, platform)).kill()
            assert await texts_of(http, batch_id) == undisturbed
            entries = await own_entries_of(ledger, {f"{batch_id}-{number}" for number in range(NUM_LINES)})
            assert len(entries) == NUM_LINES
            assert all(entry.amounts.batch_discount >= entry.amounts.net for entry in entries)
            if any(entry.rank > OWN_RANK for entry in entries):
                return
