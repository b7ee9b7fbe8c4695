"""Kept prompts on a real platform: two gateways, two routers, two workers that compute, and a tenant that fills them.

What is kept outlives the pressure of another tenant, wherever its requests arrive; what is not kept does not.  Once its
time is over it goes as well.  The bill is what the plan says of every token that was written or read.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import LIMIT_S, eventually
from tests.support.worlds.platform_process import MTLS, PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAX_PIN_S = 75
"""Nothing is kept longer; what the test does before takes a few seconds of it where the machine is idle."""
NUM_BLOCKS, BLOCK_BYTES = 128, 16 * 6144
NUM_CROWD, CROWD_TOKENS = 6, 700
PRICES = {"default": {"prompt": 1_000_000, "cached": 250_000, "output": 0}}
CACHE_PRICES = {"write_5m_percent": 125, "write_1h_percent": 200, "read_percent": 10}
DECLARED: dict[str, Any] = {
    "plans": {"paid": {"priority_class": 2, "prices": PRICES, "cache_prices": CACHE_PRICES, "pinned_kv_ratio": 0.4}},
    "tenants": {name: {"plan": "paid"} for name in ("keeps", "plain", "crowd")},
}
ENV = {
    "STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES": str(NUM_BLOCKS * BLOCK_BYTES),
    "STRATOS_ROUTER_QUEUE__TTL_S": "600",
    "STRATOS_GATEWAY_REQUESTS__PLACEMENT_TIMEOUT_S": "600",
    "STRATOS_DECODE_WORKER_SCHEDULER__MAX_PIN_S": str(MAX_PIN_S),
}
SIZE = ("--gateways", "2", "--routers", "2", "--prefill", "0", "--decode", "2", "--max-decode", "2")
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE, *MTLS, env=ENV) as running:
        yield running


@pytest.fixture(scope="module")
def admin(platform: PlatformProcess) -> Iterator[httpx.Client]:
    admin_key = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    url, headers = platform.facts()["admin_url"], {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=f"{url}/admin/v1", headers=headers, timeout=LIMIT_S, trust_env=False) as admin:
        answer = admin.post("/declaration", json=DECLARED)
        assert answer.status_code == 200, answer.text
        yield admin


@pytest.fixture(scope="module")
def keys(admin: httpx.Client) -> dict[str, str]:
    return {name: admin.post("/keys", json={"tenant": name}).json()["key"] for name in DECLARED["tenants"]}


@asynccontextmanager
async def client_of(platform: PlatformProcess, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A new connection for each request, so that both gateways get some."""
    headers, limits = {"authorization": f"Bearer {key}"}, httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=platform.base_url, headers=headers, timeout=None, trust_env=False, limits=limits
    ) as client:
        yield client


def text_of(begin: int, num_words: int = 150) -> str:
    return " ".join(f"w{(begin * 7919 + n * 104_729) % 9973}" for n in range(num_words))


async def message(client: httpx.AsyncClient, facts: str, question: str, **mark: Any) -> tuple[dict[str, int], str]:
    """Usage of an answer, and its request id."""
    system = [{"type": "text", "text": facts, **mark}]
    body = {"model": "base", "max_tokens": 2, "system": system, "messages": [{"role": "user", "content": question}]}
    answer = await client.post("/messages", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"], answer.headers["x-request-id"]


async def press(platform: PlatformProcess, key: str, begin: int) -> None:
    """Fill both pools with prompts that nothing shares, until each has evicted as many blocks as it has."""
    wanted = {name: found + NUM_BLOCKS for name, found in (await evicted(platform)).items()}
    async with client_of(platform, key) as client:

        async def one(number: int) -> None:
            ids = [1 + (number * 31 + place * (number + 3)) % 907 for place in range(CROWD_TOKENS)]
            answer = await client.post("/completions", json={"model": "base", "prompt": ids, "max_tokens": 1})
            assert answer.status_code == 200, answer.text

        while any(found < wanted[name] for name, found in (await evicted(platform)).items()):
            await asyncio.gather(*(one(begin := begin + 1) for _ in range(NUM_CROWD)))


def of_device(platform: PlatformProcess, metric: str) -> dict[str, float]:
    """A metric of the device's tier, by worker."""
    found = {}
    for name, process in platform.processes().items():
        if name.startswith("decode"):
            text = httpx.get(f"http://{process['metrics_address']}/metrics", trust_env=False, timeout=LIMIT_S).text
            samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            found[name] = sum(s.value for s in samples if s.name == metric and s.labels["tier"] == "device")
    return found


async def evicted(platform: PlatformProcess) -> dict[str, float]:
    return await asyncio.to_thread(of_device, platform, "stratos_kv_evicted_blocks_total")


async def told(client: httpx.AsyncClient, request_id: str) -> dict[str, Any]:
    """The receipt of a request, once its entry is written."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        answer = await client.get(f"/requests/{request_id}/receipt")
        found.update(answer.json() if answer.status_code == 200 else {})
        return bool(found.get("billed"))

    await eventually(is_there, "its receipt is there")
    return found


async def test_what_is_kept_outlives_another_tenant_until_its_time_is_over(
    platform: PlatformProcess, admin: httpx.Client, keys: dict[str, str]
) -> None:
    facts, begun = text_of(1), time.monotonic()
    async with client_of(platform, keys["keeps"]) as keeps, client_of(platform, keys["plain"]) as plain:
        first, first_id = await message(keeps, facts, "What is first?", **HOUR)
        assert first["cache_read_input_tokens"] == 0
        num_kept = first["cache_creation_input_tokens"]
        assert first["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": num_kept}
        assert num_kept > 500
        unmarked, _ = await message(plain, facts, "What is first?")
        assert unmarked["cache_creation_input_tokens"] == unmarked["cache_read_input_tokens"] == 0, "salts differ"
        questions = (f"What is second, asked {n}?" for n in itertools.count())

        async def is_found() -> bool:
            again, _ = await message(plain, facts, next(questions))
            return again["cache_read_input_tokens"] >= num_kept

        await eventually(is_found, "control: without pressure it is found, once both routers have heard of it")

        holder = (await told(keeps, first_id))["generations"][0]["attempts"][0]["worker"]
        await press(platform, keys["crowd"], 0)
        later = [await message(keeps, facts, "What is 0?", **HOUR)]
        assert time.monotonic() - begun < MAX_PIN_S, "the machine is too slow to tell"
        later += [await message(keeps, facts, f"What is {n}?", **HOUR) for n in range(1, 4)]
        assert [usage["cache_read_input_tokens"] >= num_kept for usage, _ in later] == [True] * 4
        assert all(usage["cache_creation_input_tokens"] < 32 for usage, _ in later), "a partial block at most"
        receipts = [await told(keeps, request_id) for _, request_id in later]
        attempts = [one["generations"][0]["attempts"][0] for one in receipts]
        assert {attempt["worker"] for attempt in attempts} == {holder}
        unkept, _ = await message(plain, facts, "What is third?")
        assert unkept["cache_read_input_tokens"] == 0, "the pools were full"

        billed = [entry for one in (await told(keeps, first_id), *receipts) for entry in one["billed"]]
        for entry, usage in zip(billed, (first, *(usage for usage, _ in later)), strict=True):
            written, read = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
            assert (entry["cache_write_1h_tokens"], entry["cached_tokens"]) == (written, read)
            assert entry["gross"] == entry["prompt_tokens"] + written, "a written token costs twice as much"
            assert abs(entry["due"] - (usage["input_tokens"] + 2 * written + read / 10)) <= 1
        month = f"{datetime.now(UTC):%Y-%m}"
        wanted = {"tenant": "keeps", "month": month}
        statement = await asyncio.to_thread(admin.get, "/statement", params=wanted)
        [line] = statement.json()["lines"]
        assert line["cache_write_1h_tokens"] == sum(entry["cache_write_1h_tokens"] for entry in billed)
        assert (line["write_surcharge"], line["due"]) == (
            sum(entry["write_surcharge"] for entry in billed),
            sum(entry["due"] for entry in billed),
        )

        async def is_over() -> bool:
            return not sum((await asyncio.to_thread(of_device, platform, "stratos_kv_pinned_blocks")).values())

        await eventually(is_over, "its time is over", poll_s=1.0)
        await press(platform, keys["crowd"], 1000)
        last, _ = await message(keeps, facts, "What is last?", **HOUR)
        assert last["cache_read_input_tokens"] == 0
        assert last["cache_creation_input_tokens"] == num_kept
