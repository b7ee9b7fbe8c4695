"""Two models that take turns on real processes: two gateways and two routers, alternating load, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import httpx
import psutil
import pytest

from tests.integration.platform.models.calls import client_of
from tests.support.paths import BASE_MODEL, MODELS
from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

SIZE = ("--prefill", "1", "--decode", "1", "--gateways", "2", "--routers", "2")
NAMES = ("base", "small")
RESIDENCY_S = 0.5
LENGTH = 150
"""Tokens of a stream that outlasts a turn."""
SECONDS = 4
"""Of alternating load."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = {
        "STRATOS_AUTOSCALER_TURNS__MIN_RESIDENCY_S": str(RESIDENCY_S),
        "STRATOS_AUTOSCALER_TURNS__BUSY_RESIDENCY_S": "0.8",
        "STRATOS_AUTOSCALER_TURNS__DRAIN_S": "0.2",
        "STRATOS_AUTOSCALER_TURNS__MAX_CHANGE_SHARE": "0.9",
        "STRATOS_AUTOSCALER_TURNS__BATCH_PATIENCE_S": "4",
        "STRATOS_GATEWAY_HTTP__SSE_KEEPALIVE_S": "0.1",
        "STRATOS_DECODE_WORKER_FAKE__WAKE_S": "0.4",
        "STRATOS_DECODE_WORKER_FAKE__TELLS_MODELS": "true",
        "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.01",
        "STRATOS_DECODE_WORKER_FAKE__NUM_BLOCKS": "2048",
    }
    models = ("--model", str(BASE_MODEL), "--model", f"small={MODELS / 'draft'}", "--share-device", "base,small")
    with running_platform(
        tmp_path_factory.mktemp("shared"), "--engine", "fake", *models, *SIZE, *MTLS, env=env
    ) as running:
        yield running


async def asleep(platform: PlatformProcess) -> dict[str, bool]:
    """Workers by name: whether they sleep."""
    status = await asyncio.to_thread(platform.status)
    return {worker["worker_id"]: worker["out_reason"] == "asleep" for worker in status["workers"]}


async def rests(platform: PlatformProcess, *names: str) -> bool:
    found = await asleep(platform)
    return all(found.get(name, False) for name in names)


async def is_awake(platform: PlatformProcess, name: str) -> bool:
    return not (await asleep(platform))[name]


async def complete(client: httpx.AsyncClient, model: str, prompt: list[int], num_tokens: int) -> list[int]:
    ask = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "return_token_ids": True}
    answer = await client.post("/completions", json=ask)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


async def test_a_request_for_a_sleeping_model_is_held_and_wakes_it(platform: PlatformProcess) -> None:
    before = await asleep(platform)
    assert before == {"prefill-0": False, "decode-0": False, "prefill-small-0": True, "decode-small-0": True}
    pids = {name: process["pid"] for name, process in (await asyncio.to_thread(platform.processes)).items()}
    ask = {"model": "small", "prompt": [5, 6], "max_tokens": 3, "ignore_eos": True, "stream": True}
    async with client_of(platform) as client, client.stream("POST", "/completions", json=ask) as stream:
        lines = [line async for line in stream.aiter_lines()]
    assert stream.status_code == 200
    assert lines[0].startswith(":"), "a comment keeps the connection alive until the model is awake"
    assert "data: [DONE]" in lines
    assert not any("error" in line for line in lines)
    await eventually(partial(rests, platform, "decode-0", "prefill-0"), "the other one sleeps")
    found = await asyncio.to_thread(platform.processes)
    assert {name: process["pid"] for name, process in found.items()} == pids, "no process was started or ended"


@pytest.mark.slow
async def test_alternating_load_loses_nothing_and_changes_seldom(platform: PlatformProcess) -> None:
    prompts = [[5 + number, 6, 7] for number in range(4)]
    async with client_of(platform) as client:
        expected = {
            (name, number): await complete(client, name, prompts[number], 12) for name in NAMES for number in range(4)
        }
        assert expected["base", 0] != expected["small", 0], "a token tells of which model it is"
        before = await changes(platform)
        until, answers = asyncio.get_running_loop().time() + SECONDS, 0

        async def alternate(number: int) -> None:
            nonlocal answers
            for turn in range(10_000):
                if asyncio.get_running_loop().time() > until:
                    return
                name = NAMES[(number + turn) % 2]
                assert await complete(client, name, prompts[number], 12) == expected[name, number]
                answers += 1

        await asyncio.gather(*(alternate(number) for number in range(4)))
    num_changes = await changes(platform) - before
    assert answers >= 2 * 4, "every client went on"
    assert 1 <= num_changes <= SECONDS / RESIDENCY_S + 1


@pytest.mark.slow
async def test_a_batch_waits_while_a_client_of_the_awake_model_asks_and_gets_its_turn_in_the_end(
    platform: PlatformProcess,
) -> None:
    key = (await asyncio.to_thread(platform.stratos, "keys", "create", "--tenant", "lines", "--plan", "batch")).stdout
    ask = {"model": "small", "prompt": [7, 7], "max_tokens": 3, "ignore_eos": True}
    loop, headers = asyncio.get_running_loop(), {"authorization": f"Bearer {key.strip()}"}
    async with client_of(platform) as client:
        await complete(client, "base", [6, 6], 2)
        began, longest_s = loop.time(), 0.0
        batch = asyncio.create_task(client.post("/completions", json=ask, headers=headers))
        while not batch.done():
            asked = loop.time()
            await complete(client, "base", [6, 6], 2)
            longest_s = max(longest_s, loop.time() - asked)
        assert (await batch).status_code == 200, batch.result().text
    waited_s = loop.time() - began
    assert waited_s > 4, "clients of the awake model go first"
    assert longest_s < waited_s, "they were served until then"


async def test_a_stream_that_outlasts_its_turn_goes_on_at_the_next_one_token_for_token(
    platform: PlatformProcess,
) -> None:
    async with client_of(platform) as client:
        before = await changes(platform)
        long = asyncio.create_task(complete(client, "base", [9, 9], LENGTH))
        await eventually(partial(is_awake, platform, "decode-0"), "its turn")
        short = [await complete(client, "small", [8, 8], 5) for _ in range(2)]
        assert short[0] == short[1]
        assert not long.done()
        streamed = await long
        assert await changes(platform) >= before + 2, "the turn went to the other model, and came back"
        assert len(streamed) == LENGTH
        assert await complete(client, "base", [9, 9], LENGTH) == streamed


async def test_a_worker_that_is_killed_as_it_sleeps_comes_back_and_sleeps(platform: PlatformProcess) -> None:
    async with client_of(platform) as client:
        await complete(client, "base", [3], 2)
        await eventually(partial(rests, platform, "decode-small-0"), "the other one sleeps")
        pid = (await asyncio.to_thread(platform.processes))["decode-small-0"]["pid"]
        psutil.Process(pid).kill()
        await eventually(partial(is_back, platform, pid), "it is back, and sleeps: it is not its turn")
        assert len(await complete(client, "small", [4, 4], 3)) == 3


async def is_back(platform: PlatformProcess, pid: int) -> bool:
    process = (await asyncio.to_thread(platform.processes))["decode-small-0"]
    return process["pid"] not in (0, pid) and await rests(platform, "decode-small-0")


async def changes(platform: PlatformProcess) -> float:
    """Turns that were given so far."""
    page = (await asyncio.to_thread(platform.processes))["autoscaler"]["metrics_address"]
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:
        text = (await client.get(f"http://{page}/metrics")).text
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith('stratos_autoscaler_turns_total{outcome="done"')
    )
