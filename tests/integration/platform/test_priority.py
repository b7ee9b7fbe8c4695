"""Classes, ageing and weights under overload: two gateways, a router and a worker of one batch slot, as processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess, running_platform

STEP_S = 0.01
MAX_OPEN = 16
"""Of each gateway."""
TENANTS: dict[str, dict[str, Any]] = {
    "premium": {"plan": "premium"},
    "standard": {"plan": "standard"},
    "batch": {"plan": "batch", "overrides": {"max_batch_ratio": 1.0, "kv_headroom_ratio": 0.0}},
    "heavy": {"plan": "standard", "overrides": {"weight": 3}},
}
AGEING_S = 2.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    env = {
        "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
        "STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS": "1",
        "STRATOS_ROUTER_ADMISSION__MAX_WAITING_PER_WORKER": "0",
        "STRATOS_GATEWAY_REQUESTS__MAX_OPEN": str(MAX_OPEN),
    }
    flags = ("--engine", "fake", "--gateways", "2", "--prefill", "0", "--decode", "1", "--max-decode", "1")
    with running_platform(tmp_path_factory.mktemp("platform"), *flags, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def keys(platform: PlatformProcess) -> dict[str, str]:
    """A key of each tenant, made with the admin API of a running platform."""
    made = platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    with httpx.Client(
        base_url=f"{platform.facts()['admin_url']}/admin/v1", headers={"authorization": f"Bearer {made}"}
    ) as admin:
        assert admin.post("/declaration", json={"tenants": TENANTS}).status_code == 200
        return {name: admin.post("/keys", json={"tenant": name}).json()["key"] for name in TENANTS}


@dataclass
class Load:
    """Requests of several tenants, and in which order they ended."""

    http: httpx.AsyncClient
    keys: dict[str, str]
    ended: list[tuple[str, int, float]] = field(default_factory=list)
    """Name, status, and seconds since the load began."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    sent: dict[str, float] = field(default_factory=dict)
    """When the last one of a name was sent."""

    def send(self, tenant: str, name: str = "", *, num_tokens: int = 3) -> asyncio.Task[None]:
        self.sent[name or tenant] = time.monotonic() - self.began
        task = asyncio.create_task(self._send(tenant, name or tenant, num_tokens))
        self.tasks.append(task)
        return task

    async def _send(self, tenant: str, name: str, num_tokens: int) -> None:
        body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": num_tokens, "ignore_eos": True}
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        answer = await self.http.post("/completions", json=body, headers=headers)
        self.ended.append((name, answer.status_code, time.monotonic() - self.began))

    def order(self) -> list[str]:
        """Names of what was served, in order."""
        return [name for name, status, _ in self.ended if status == 200]

    def end_of(self, name: str) -> float:
        return next(at for found, _, at in self.ended if found == name)


@pytest.fixture
async def load(platform: PlatformProcess, keys: dict[str, str]) -> AsyncIterator[Load]:
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=platform.base_url, timeout=60, limits=limits, trust_env=False) as http:
        made = Load(http, keys)
        yield made
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        await eventually(lambda: asyncio.to_thread(is_idle, platform), "nothing runs", poll_s=0.1)


def is_idle(platform: PlatformProcess) -> bool:
    """Nothing waits at the router, nothing runs at the worker."""
    return not platform.status()["queues"] and not num_running(platform)


async def queue_up(platform: PlatformProcess, load: Load, requests: list[tuple[str, int]]) -> list[str]:
    """Let requests (tenant, tokens) wait in this order for a slot that is taken; returns in which order they end."""
    hold = load.send("premium", "hold", num_tokens=3000)
    await eventually(lambda: asyncio.to_thread(num_running, platform), "the slot is taken", poll_s=0.05)
    for place, (tenant, num_tokens) in enumerate(requests):
        load.send(tenant, num_tokens=num_tokens)
        if place + 1 == len(requests) or requests[place + 1][0] != tenant:
            await eventually(lambda: num_queued(platform, place + 1), "it waits", poll_s=0.05)  # noqa: B023
    hold.cancel()
    await asyncio.gather(*load.tasks, return_exceptions=True)
    return load.order()


async def num_queued(platform: PlatformProcess, wanted: int) -> bool:
    status = await asyncio.to_thread(platform.status)
    return sum(queue["num_requests"] for queue in status["queues"]) == wanted


def num_running(platform: PlatformProcess) -> int:
    return sum(worker["num_running"] for worker in platform.status()["workers"])


async def test_classes_go_in_their_order_and_tenants_of_a_class_by_weight(
    platform: PlatformProcess, load: Load
) -> None:
    wanted = [("batch", 3)] * 2 + [("standard", 3)] * 6 + [("heavy", 3)] * 6 + [("premium", 3)] * 2
    order = await queue_up(platform, load, wanted)
    # On a machine that stands still for seconds one request of them may have aged: it takes one place.
    assert order[:3].count("premium") == 2, order
    assert "batch" not in order[:12], order
    first = [name for name in order if name in ("standard", "heavy")][:8]
    assert 5 <= first.count("heavy") <= 7, order


async def test_a_waiting_request_rises_after_two_seconds_and_batch_no_higher_than_standard(
    platform: PlatformProcess, load: Load
) -> None:
    wanted = [("premium", 40)] * 12 + [("standard", 3), ("batch", 3)]
    order = await queue_up(platform, load, wanted)
    assert load.end_of("standard") - load.sent["standard"] >= AGEING_S, load.ended
    assert "premium" in order[order.index("standard") :], "it goes before premium ones that wait"
    assert order[-1] == "batch", "it rises to standard, and premium ones go before that"


async def test_full_gateways_let_the_lowest_class_give_way(load: Load) -> None:
    load.send("premium", "hold", num_tokens=1500)
    await asyncio.sleep(0.2)
    standard, batch = [load.send("standard") for _ in range(6)], []
    while sum(not task.done() for task in batch) < 2 * MAX_OPEN - 7:  # a full one refuses, the other one takes the next
        batch.append(load.send("batch"))
        await asyncio.sleep(0.02)
    num_refused = len(load.ended)
    premium = [load.send("premium", num_tokens=1) for _ in range(4)]
    await eventually(lambda: len(load.ended) >= num_refused + 4, "four gave way")
    assert {(name, status) for name, status, _ in load.ended} == {("batch", 503)}
    assert not any(task.done() for task in (*standard, *premium))
    assert sum(not task.done() for task in batch) == 2 * MAX_OPEN - 7 - 4
