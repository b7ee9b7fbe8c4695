"""Kept answers of two gateways: one computes, both have it; and nothing of the texts lies open anywhere."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from stratos.rpc.clients.gateway import fetch_snapshot
from stratos.store.redis import open_redis
from tests.support.servers.planted_text import open_places
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import say

PLANTED_PROMPT, PLANTED_ANSWER = "zebracorn ledger of the north", "quixotic plover"
BODY = {"model": "base", "prompt": PLANTED_PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 2}


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """Two gateways of one installation, each with a worker of its own."""
    async with AsyncExitStack() as stack:
        found = []
        for name in ("a", "b"):
            values: dict[str, Any] = {
                "platform_key": "22" * 32,
                "snapshot": {"poll_s": 0.02, "copy_path": tmp_path / name / "copy.jsonl", "copy_interval_s": 0.1},
                "ledger": {"spool_path": tmp_path / name / "spool", "interval_s": 0.05},
            }
            world = await stack.enter_async_context(admin_world(redis_url, tmp_path, **values))
            world.worker.script = say(PLANTED_ANSWER)
            found.append(world)
        terms = {"overrides": {"response_cache": True}}
        assert (await found[0].call("PUT", "/tenants/acme", terms)).status_code == 200
        for world in found:
            await eventually(lambda world=world: caches(world), "the tenant's answers are kept")
        yield found


async def caches(world: AdminWorld) -> bool:
    """Whether a gateway knows the tenant's plan and its data key."""
    text = (await fetch_snapshot(world.service.address)).decode().replace("\\", "")
    return '"response_cache":true' in text and '"data_key"' in text


async def ask(world: AdminWorld) -> httpx.Response:
    headers = {"authorization": f"Bearer {world.keys['user']}"}
    answer = await world.public.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def shown(answer: httpx.Response) -> Any:
    return {**answer.json(), "id": "", "created": 0}


async def num_shared(redis_url: str) -> int:
    async with open_redis(redis_url) as redis:
        return int(await redis.hlen("stratos:answers"))


async def test_two_gateways_compute_an_answer_once_until_its_tenant_is_deleted(
    worlds: list[AdminWorld], redis_url: str
) -> None:
    one, two = worlds
    first = await ask(one)

    async def is_shared() -> bool:
        return await num_shared(redis_url) == 1

    await eventually(is_shared, "the answer is in Redis")
    again = await ask(two)
    assert shown(again) == shown(first)
    assert (len(one.worker.submits), len(two.worker.submits)) == (1, 0)
    assert shown(await ask(two)) == shown(first)
    assert (await one.call("DELETE", "/tenants/acme")).status_code == 200

    async def is_gone() -> bool:
        return await num_shared(redis_url) == 0

    await eventually(is_gone, "the answers of a deleted tenant are removed")


async def test_a_dump_of_redis_and_of_every_disk_has_no_planted_text(
    worlds: list[AdminWorld], redis_url: str, tmp_path: Path
) -> None:
    one, two = worlds
    await ask(one)

    async def is_shared() -> bool:
        return await num_shared(redis_url) == 1

    await eventually(is_shared, "the answer is in Redis")
    await ask(two)
    planted = [PLANTED_PROMPT, PLANTED_ANSWER, one.keys["user"], "22" * 32, base64.b64encode(b"\x22" * 32).decode()]
    assert await open_places(planted, redis_url, tmp_path) == []
    # The control: each place is looked into.
    async with open_redis(redis_url) as redis:
        await redis.hset("stratos:control", "x", f"...{PLANTED_ANSWER}...")
    (tmp_path / "objects" / "control").write_text(PLANTED_PROMPT)
    assert len(await open_places(planted, redis_url, tmp_path)) == 2
