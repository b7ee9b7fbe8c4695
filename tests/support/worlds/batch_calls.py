"""Batches as a client of two gateways submits and fetches them."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld

BATCHES = "/v1/batches"
QUICK = {"poll_s": 0.05, "lease_s": 0.6}
OVER = ("completed", "failed", "expired", "cancelled")
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60},
    "/v1/completions": {"prompt": ["go", "on"], "max_tokens": 60},
    "/v1/responses": {"input": "go", "max_output_tokens": 60},
    "/v1/messages": {"messages": [{"role": "user", "content": "go"}], "max_tokens": 60},
    "/v1/moderations": {"input": "go"},
}


async def call(world: AdminWorld, method: str, path: str, *, by: str = "user", **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys[by]}", **more.pop("headers", {})}
    return await world.public.request(method, path, headers=headers, **more)


def lines(num: int, url: str, **more: Any) -> list[dict[str, Any]]:
    own = {} if url == "/v1/moderations" else {"model": "base"}
    body = {**own, **ASKED[url], **more}
    return [{"custom_id": f"c{number}", "method": "POST", "url": url, "body": body} for number in range(num)]


async def upload(world: AdminWorld, rows: list[dict[str, Any]], by: str = "user") -> str:
    content = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    answer = await call(world, "POST", "/v1/files", by=by, **form)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def submit(world: AdminWorld, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"input_file_id": await upload(world, rows), "endpoint": rows[0]["url"], "completion_window": "24h", **more}
    answer = await call(world, "POST", BATCHES, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def shown(world: AdminWorld, batch_id: str) -> dict[str, Any]:
    return dict((await call(world, "GET", f"{BATCHES}/{batch_id}")).json())


async def ended(world: AdminWorld, batch_id: str) -> dict[str, Any]:
    async def is_over() -> bool:
        return (await shown(world, batch_id))["status"] in OVER

    await eventually(is_over, "the batch has ended")
    return await shown(world, batch_id)


async def is_billed(world: AdminWorld, num_requests: int) -> bool:
    rows = (await call(world, "GET", "/v1/usage")).json()["data"]
    return sum(row["requests"] for row in rows) == num_requests


async def rows_of(world: AdminWorld, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    answer = await call(world, "GET", f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    return [orjson.loads(line) for line in answer.content.splitlines()]
