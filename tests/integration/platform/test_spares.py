"""A spare takes the place of a decode worker that is killed under streams, and of no spot worker: two gateways and two
routers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.integration.platform.models.calls import client_of
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

SIZE = ("--prefill", "0", "--decode", "1", "--max-decode", "1", "--spares", "1", "--spot", "1")
TWICE = ("--gateways", "2", "--routers", "2")
SPOT = "decode-spot-0"
LENGTH = 150
NUM_STREAMS = 6


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = {"STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.01"}
    with running_platform(
        tmp_path_factory.mktemp("spares"), "--engine", "fake", *SIZE, *TWICE, *MTLS, env=env
    ) as running:
        yield running


async def states(platform: PlatformProcess) -> dict[str, tuple[str, str]]:
    """State of decode workers that last, by name: of the process, and as routers see it."""
    status = await asyncio.to_thread(platform.status)
    processes = {process["name"]: process["state"] for process in status["processes"]}
    return {
        w["worker_id"]: (processes[w["worker_id"]], w["out_reason"])
        for w in status["workers"]
        if w["worker_id"] != SPOT
    }


async def are(platform: PlatformProcess, expected: dict[str, tuple[str, str]]) -> bool:
    return await states(platform) == expected


async def complete(client: httpx.AsyncClient, prompt: list[int]) -> list[int]:
    ask = {"model": "base", "prompt": prompt, "max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True}
    answer = await client.post("/completions", json=ask)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


async def ready(platform: PlatformProcess, key: str) -> str:
    url, headers = platform.facts()["admin_url"], {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=LIMIT_S, trust_env=False) as admin:
        rows: list[dict[str, Any]] = (await admin.get("/admin/v1/models")).json()["data"]
    return str(next(row["ready"] for row in rows if row["name"] == "base"))


async def is_ready(platform: PlatformProcess, key: str, expected: str) -> bool:
    return await ready(platform, key) == expected


async def runs(platform: PlatformProcess, num_seqs: int) -> bool:
    status = await asyncio.to_thread(platform.status)
    return max(w.get("num_running", 0) for w in status["workers"]) >= num_seqs


async def pool_sizes(platform: PlatformProcess) -> set[str]:
    """Lines of the autoscaler's metric of the pool's workers that are not 0."""
    address = (await asyncio.to_thread(platform.processes))["autoscaler"]["metrics_address"]
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as client:
        lines = (await client.get(f"http://{address}/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("stratos_autoscaler_workers{")]
    return {line.partition('state="')[2] for line in found if not line.endswith(" 0.0")}


async def has_one(platform: PlatformProcess) -> bool:
    """The metric is of the autoscaler's last look, which may have been before."""
    return await pool_sizes(platform) == {'live"} 1.0'}


async def test_a_spare_takes_the_place_of_a_killed_worker_and_the_pool_gets_a_new_spare(
    platform: PlatformProcess,
) -> None:
    key = (
        await asyncio.to_thread(platform.stratos, "keys", "create", "--tenant", "platform", "--role", "admin")
    ).stdout.strip()
    await eventually(
        partial(are, platform, {"decode-0": ("serving", ""), "decode-1": ("standby", "standby")}), "a spare stands by"
    )
    await eventually(partial(is_ready, platform, key, "1/1"), "a spare is no worker of the pool")
    before = await asyncio.to_thread(platform.processes)
    prompts = [[5 + number, 6, 7] for number in range(NUM_STREAMS)]
    async with client_of(platform) as client:
        expected = [await complete(client, prompt) for prompt in prompts[:2]]
        streams = [asyncio.create_task(complete(client, prompt)) for prompt in prompts]
        await eventually(partial(runs, platform, NUM_STREAMS), "all run")
        assert (await states(platform))["decode-1"] == ("standby", "standby"), "load wakes no spare"
        os.kill(before["decode-0"]["pid"], signal.SIGKILL)
        answers = await asyncio.gather(*streams)
        assert answers[:2] == expected, "token for token"
        assert all(len(tokens) == LENGTH for tokens in answers)
    await eventually(
        partial(are, platform, {"decode-0": ("standby", "standby"), "decode-1": ("serving", "")}), "a new spare"
    )
    after = await asyncio.to_thread(platform.processes)
    assert (after["decode-1"]["pid"], after["decode-1"]["num_restarts"]) == (before["decode-1"]["pid"], 0)
    assert after["decode-0"]["num_restarts"] == 1
    await eventually(partial(is_ready, platform, key, "1/1"), "the pool is whole, and no larger")
    await eventually(partial(has_one, platform), "the autoscaler counts it so")


async def test_the_new_spare_takes_the_place_back(platform: PlatformProcess) -> None:
    before = await asyncio.to_thread(platform.processes)
    assert (before["decode-0"]["state"], before["decode-1"]["state"]) == ("standby", "serving")
    os.kill(before["decode-1"]["pid"], signal.SIGKILL)
    async with client_of(platform) as client:
        assert len(await complete(client, [9, 9])) == LENGTH
    await eventually(
        partial(are, platform, {"decode-0": ("serving", ""), "decode-1": ("standby", "standby")}), "places changed"
    )
    assert (await asyncio.to_thread(platform.processes))["decode-0"]["pid"] == before["decode-0"]["pid"]


async def test_a_spare_that_is_killed_is_started_again_as_one(platform: PlatformProcess) -> None:
    before = (await asyncio.to_thread(platform.processes))["decode-1"]
    assert before["state"] == "standby"
    os.kill(before["pid"], signal.SIGKILL)

    async def is_back() -> bool:
        now = (await asyncio.to_thread(platform.processes))["decode-1"]
        return now["state"] == "standby" and now["pid"] not in (0, before["pid"])

    await eventually(is_back, "the spare")
    async with client_of(platform) as client:
        assert len(await complete(client, [9, 8])) == LENGTH


async def test_a_killed_spot_worker_takes_no_spare_and_is_started_again_as_one(platform: PlatformProcess) -> None:
    before, standing = await asyncio.to_thread(platform.processes), await states(platform)
    assert sorted(standing.values()) == [("serving", ""), ("standby", "standby")], "it is none of these"
    os.kill(before[SPOT]["pid"], signal.SIGKILL)

    async def is_back() -> bool:
        workers = (await asyncio.to_thread(platform.status))["workers"]
        new = (await asyncio.to_thread(platform.processes))[SPOT]["pid"] not in (0, before[SPOT]["pid"])
        return new and any(w["worker_id"] == SPOT and w["is_spot"] and w["is_live"] for w in workers)

    await eventually(is_back, "the spot worker")
    await eventually(partial(are, platform, standing), "the others are what they were")
    after = await asyncio.to_thread(platform.processes)
    assert all(after[name]["pid"] == before[name]["pid"] for name in standing)
    await eventually(partial(has_one, platform), "the autoscaler counts it so")
