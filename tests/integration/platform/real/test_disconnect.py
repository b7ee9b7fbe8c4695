"""Clients that leave: slots and blocks of both workers come back, checked on the ledger; neighbours notice nothing."""

import asyncio
import json

import httpx
import pytest

from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess

NUM_CLIENTS = 12
BOUND_S = LIMIT_S * 0.8
"""Of all that clients wait for: below the limit of a test, which would not say where they stand."""
Standing = dict[str, str]
"""Clients that have not left yet, and what each got last."""


def idle(platform: PlatformProcess) -> bool:
    """No block and no staging slot is taken on any worker, and no request waits or runs."""
    workers = platform.status()["workers"]
    assert {worker["role"] for worker in workers} == {"prefill", "decode"}
    return all(
        worker["num_running"] == worker["num_waiting"] == worker["num_handoffs"] == worker["num_booked"] == 0
        and worker["blocks"]["allocated"] == worker["blocks"]["reserved"] == worker["blocks"]["fenced"] == 0
        and worker["blocks"]["free"] + worker["blocks"]["cached"] == worker["blocks"]["total"]
        and worker["staging"]["free"] == worker["staging"]["total"]
        for worker in workers
    )


def make_body(index: int, *, stream: bool, max_tokens: int) -> dict:
    prompt = [(index * 131 + i * 17) % 4000 + 5 for i in range(60 + 90 * index)]
    return {
        "model": "base", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "stream": stream, "return_token_ids": True,
    }  # fmt: skip


async def leave_after(client: httpx.AsyncClient, index: int, standing: Standing) -> int:
    """Start a stream and leave after its ``index``-th event; 0 leaves before anything came."""
    seen = 0
    body = make_body(index, stream=True, max_tokens=2000)
    standing[f"leaver {index}"] = "no headers yet"
    async with client.stream("POST", "/completions", json=body) as response:
        assert response.status_code == 200
        standing[f"leaver {index}"] = f"{response.headers['x-request-id']}: headers"
        if index:
            async for line in response.aiter_lines():
                seen += line.startswith("data: {")
                standing[f"leaver {index}"] = f"{response.headers['x-request-id']}: event {seen}, last {line[:80]!r}"
                if seen >= index:
                    break
        standing[f"leaver {index}"] += ", leaving"
    del standing[f"leaver {index}"]
    return seen


async def hang_up(client: httpx.AsyncClient, index: int, standing: Standing) -> None:
    """Leave an answer that is not streamed before it is there: in the queue, in prefill, in transfer or in decode."""
    standing[f"hanging up {index}"] = "asked"
    with pytest.raises(httpx.ReadTimeout):
        await client.post(
            "/completions",
            json=make_body(index, stream=False, max_tokens=3000),
            timeout=httpx.Timeout(30, read=0.01 + 0.03 * index),
        )
    del standing[f"hanging up {index}"]


async def control(platform: PlatformProcess, client: httpx.AsyncClient, standing: Standing) -> None:
    """While a client streams the ledger does show it; a stream that is over before anybody looked is no such client."""
    is_seen, num_streams = False, 0
    while not is_seen:
        num_streams += 1
        standing["control"] = f"stream {num_streams}"
        body = make_body(5, stream=True, max_tokens=3000)
        async with client.stream("POST", "/completions", json=body) as response:
            lines = response.aiter_lines()  # kept: without its iterator the stream is closed
            await anext(lines)
            standing["control"] = f"stream {num_streams} has begun"
            is_seen = not await asyncio.to_thread(idle, platform)
    del standing["control"]


async def leave(platform: PlatformProcess, standing: Standing) -> tuple[list[int], list[int]]:
    headers = {"authorization": f"Bearer {platform.api_key}"}
    async with httpx.AsyncClient(base_url=platform.base_url, headers=headers, timeout=LIMIT_S) as client:

        async def neighbour() -> list[int]:
            standing["neighbour"] = "asked"
            answer = await client.post("/completions", json=make_body(3, stream=False, max_tokens=60))
            del standing["neighbour"]
            return answer.json()["choices"][0]["token_ids"]

        before = await neighbour()
        await control(platform, client, standing)
        leavers = [leave_after(client, index, standing) for index in range(NUM_CLIENTS)]
        leavers += [hang_up(client, index, standing) for index in range(NUM_CLIENTS)]
        during, *_ = await asyncio.gather(neighbour(), *leavers)
        return before, during


async def run(platform: PlatformProcess) -> tuple[list[int], list[int]]:
    """Have all clients leave; where they do not, say where each one stands."""
    standing: Standing = {}
    try:
        async with asyncio.timeout(BOUND_S):
            return await leave(platform, standing)
    except TimeoutError:
        workers = await asyncio.to_thread(lambda: platform.status()["workers"])
        raise AssertionError(f"after {BOUND_S} s: {json.dumps([standing, workers], indent=1)}") from None


def test_clients_that_leave_free_everything_on_both_workers(real_platform: PlatformProcess) -> None:
    wait_until(lambda: idle(real_platform), what="an idle platform at the start")
    before, during = asyncio.run(run(real_platform))
    assert before == during, "a neighbour noticed"
    wait_until(lambda: idle(real_platform), what="every slot and block being free again")
