"""Pools of plans on real processes: two decode workers, one with a label, on which premium has KV reserved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

LABELLED, OTHER = "decode-1", "decode-0"
NUM_BLOCKS, BLOCK_SIZE = 200, 16
PROMPT_BLOCKS = 48
"""Of a batch request: three fit a whole pool of which 0.9 may be filled, and one beside the reserve of 0.5."""
DECLARED: dict[str, Any] = {
    "plans": {"premium": {"priority_class": 1, "pools": ["fast"], "kv_reserved_ratio": 0.5}},
    "tenants": {
        "premium": {"plan": "premium"},
        "batch": {"plan": "batch", "overrides": {"max_batch_ratio": 1.0, "kv_headroom_ratio": 0.0}},
    },
}
ENV = {
    "STRATOS_DECODE_WORKER_FAKE__NUM_BLOCKS": str(NUM_BLOCKS),
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.2",
    "STRATOS_ROUTER_QUEUE__TTL_S": "600",
    "STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S": "600",
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    size = ("--prefill", "0", "--decode", "2", "--max-decode", "2", "--pools", ",fast")
    with running_platform(tmp_path_factory.mktemp("platform"), "--engine", "fake", *size, *MTLS, env=ENV) as running:
        yield running


@pytest.fixture(scope="module")
def keys(platform: PlatformProcess) -> dict[str, str]:
    admin_key = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    url, headers = platform.facts()["admin_url"], {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=f"{url}/admin/v1", headers=headers, timeout=LIMIT_S, trust_env=False) as admin:
        assert admin.post("/declaration", json=DECLARED).status_code == 200
        return {name: admin.post("/keys", json={"tenant": name}).json()["key"] for name in DECLARED["tenants"]}


@asynccontextmanager
async def client_of(platform: PlatformProcess, key: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=None, trust_env=False) as client:
        yield client


async def complete(client: httpx.AsyncClient, num_prompt_tokens: int, num_tokens: int) -> str:
    """Run a request; returns its id."""
    body = {"model": "base", "prompt": [5] * num_prompt_tokens, "max_tokens": num_tokens, "ignore_eos": True}
    answer = await client.post("/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def worker_of(client: httpx.AsyncClient, request_id: str) -> str:
    """The worker that ran a request, as its receipt says."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        answer = await client.get(f"/requests/{request_id}/receipt")
        found.update(answer.json() if answer.status_code == 200 else {})
        return answer.status_code == 200

    await eventually(is_there, "its receipt is there")
    ((attempt,),) = [generation["attempts"] for generation in found["generations"]]
    return attempt["worker"]


async def test_a_plan_runs_where_its_label_is_and_others_elsewhere_first(
    platform: PlatformProcess, keys: dict[str, str]
) -> None:
    for tenant, worker in (("premium", LABELLED), ("batch", OTHER)):
        async with client_of(platform, keys[tenant]) as client:
            for _ in range(3):
                assert await worker_of(client, await complete(client, 4, 2)) == worker


async def test_batch_is_kept_off_the_reserved_kv_and_premium_gets_it(
    platform: PlatformProcess, keys: dict[str, str]
) -> None:
    async with client_of(platform, keys["batch"]) as batch, client_of(platform, keys["premium"]) as premium:
        floods = [asyncio.create_task(complete(batch, PROMPT_BLOCKS * BLOCK_SIZE, 2000)) for _ in range(6)]

        def is_full() -> bool:
            status = platform.status()
            running = {worker["worker_id"]: worker["num_running"] for worker in status["workers"]}
            return running[LABELLED] == 1 and bool(status["queues"])

        await eventually(lambda: asyncio.to_thread(is_full), "batch waits, with one request beside the reserve")
        request_id = await complete(premium, 2 * PROMPT_BLOCKS * BLOCK_SIZE // 3, 2)
        assert await worker_of(premium, request_id) == LABELLED
        assert not any(flood.done() for flood in floods)
        await eventually(lambda: asyncio.to_thread(is_full), "more batch requests wait, and leave the room free")
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
