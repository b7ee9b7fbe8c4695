"""Classes, ageing and weights under overload, in the order in which the one router says that it placed requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pytest

from tests.support.servers.otlp_receiver import ReceivedSpan
from tests.support.waiting import eventually
from tests.support.worlds.money_platform import MAX_OPEN, MoneyPlatform

UNLIMITED = {"requests_per_min": None, "tokens_per_min": None}
TENANTS: dict[str, dict[str, Any]] = {
    "premium": {"plan": "premium"},
    "standard": {"plan": "standard", "overrides": UNLIMITED},
    "batch": {"plan": "batch", "overrides": {"max_batch_ratio": 1.0, "kv_headroom_ratio": 0.0}},
    "heavy": {"plan": "standard", "overrides": {**UNLIMITED, "weight": 3}},
}
CLASSES = {"premium": 1, "standard": 2, "heavy": 2, "batch": 3}
AGEING_S = 2.0
DISPATCHES_PER_AGED = 10
HOLD_TOKENS = 4000
T = TypeVar("T")


@pytest.fixture(scope="package")
def keys(platform: MoneyPlatform) -> dict[str, str]:
    """A key of each tenant, made with the admin API of the running platform."""
    assert platform.admin.post("/declaration", json={"tenants": TENANTS}).status_code == 200
    return {name: platform.admin.post("/keys", json={"tenant": name}).json()["key"] for name in TENANTS}


@dataclass
class Load:
    """Requests of several tenants."""

    http: httpx.AsyncClient
    keys: dict[str, str]
    ended: list[tuple[str, int]] = field(default_factory=list)
    """Tenant and status."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    tenants: dict[str, str] = field(default_factory=dict)
    """By request id."""

    def send(self, tenant: str, *, num_tokens: int = 3) -> asyncio.Task[None]:
        request_id = f"{id(self)}-{len(self.tasks)}-{tenant}"
        self.tenants[request_id] = tenant
        task = asyncio.create_task(self._send(tenant, request_id, num_tokens))
        self.tasks.append(task)
        return task

    async def _send(self, tenant: str, request_id: str, num_tokens: int) -> None:
        body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": num_tokens, "ignore_eos": True}
        headers = {"authorization": f"Bearer {self.keys[tenant]}", "x-request-id": request_id}
        answer = await self.http.post("/completions", json=body, headers=headers)
        self.ended.append((tenant, answer.status_code))

    async def leave(self) -> None:
        """All clients go."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass(frozen=True)
class Placed:
    """One request that had to wait."""

    tenant: str
    waited_s: float


@pytest.fixture
async def load(platform: MoneyPlatform, keys: dict[str, str]) -> AsyncIterator[Load]:
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
    url = platform.process.base_url
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as http:
        made = Load(http, keys)
        yield made
        await made.leave()
        await until_idle(platform)


async def until_idle(platform: MoneyPlatform) -> None:
    """Nothing waits at the router, nothing runs at the worker."""
    await eventually(lambda: asyncio.to_thread(is_idle, platform), "nothing runs", poll_s=0.1)


def is_idle(platform: MoneyPlatform) -> bool:
    return not platform.num_queued() and not platform.num_running()


async def with_slot_taken(platform: MoneyPlatform, load: Load, work: Callable[[asyncio.Task[None]], Awaitable[T]]) -> T:
    """Do something while a long request has the one place in the batch.

    All is begun again where that one ends before: on a slow machine queueing takes long.
    """
    while True:
        hold = load.send("premium", num_tokens=HOLD_TOKENS)
        await eventually(
            lambda: hold.done() or asyncio.to_thread(platform.num_running),  # noqa: B023
            "the slot is taken", poll_s=0.05,
        )  # fmt: skip
        found = await work(hold)
        if not hold.done():
            hold.cancel()
            return found
        await load.leave()
        await until_idle(platform)


async def queue_up(platform: MoneyPlatform, load: Load, tenants: list[str], *, waiting_s: float = 0.0) -> list[Placed]:
    """Let requests wait in this order for a slot that is taken, and ``waiting_s`` more; returns how they were placed.

    The dispatches before them let an aged one be the first.
    """

    async def queue(hold: asyncio.Task[None]) -> list[str]:
        first = len(load.tasks)
        for number, tenant in enumerate(tenants, 1):
            load.send(tenant)
            if tenants[number : number + 1] != [tenant]:
                await eventually(lambda num=number: hold.done() or has_queued(platform, num), "it waits", poll_s=0.05)
        await asyncio.sleep(waiting_s)
        return list(load.tenants)[first:]

    await asyncio.gather(*(load.send("premium") for _ in range(DISPATCHES_PER_AGED)))
    request_ids = await with_slot_taken(platform, load, queue)
    await asyncio.gather(*load.tasks[-len(tenants) :])
    return await placed_of(platform, load, request_ids)


async def has_queued(platform: MoneyPlatform, wanted: int) -> bool:
    return await asyncio.to_thread(platform.num_queued) == wanted


async def placed_of(platform: MoneyPlatform, load: Load, request_ids: list[str]) -> list[Placed]:
    """Requests in the order in which the router placed them, by its own clock."""
    found: dict[str, ReceivedSpan] = {}

    def have_all() -> bool:
        spans = [span for span in platform.collector.spans() if span.name == "Schedule"]
        for span in spans:  # of one that its worker refused, the first placement
            found.setdefault(span.attributes["stratos.request_id"], span)
        return found.keys() >= set(request_ids)

    await eventually(have_all, "the router has exported its spans", poll_s=0.1)
    spans = sorted((found[request_id] for request_id in request_ids), key=lambda span: span.end_ns)
    return [
        Placed(load.tenants[span.attributes["stratos.request_id"]], (span.end_ns - span.begin_ns) / 1e9)
        for span in spans
    ]


def jumps(placed: list[Placed]) -> list[int]:
    """Places of requests that went before one of a higher class, which waited as well."""
    classes = [CLASSES[one.tenant] for one in placed]
    return [place for place, own in enumerate(classes) if min(classes[place:]) < own]


def check_classes(placed: list[Placed]) -> None:
    """A higher class goes first, but for one of ten requests that has waited for two seconds."""
    found = jumps(placed)
    assert all(placed[place].waited_s >= AGEING_S for place in found), placed
    assert all(second - first >= DISPATCHES_PER_AGED for first, second in itertools.pairwise(found)), placed


async def test_classes_go_in_their_order_and_tenants_of_a_class_by_weight(platform: MoneyPlatform, load: Load) -> None:
    tenants = ["batch"] * 2 + ["standard"] * 6 + ["heavy"] * 6 + ["premium"] * 2
    placed = await queue_up(platform, load, tenants)
    check_classes(placed)
    order = [one.tenant for one in placed]
    assert order[:3].count("premium") == 2, order
    first = [name for name in order if name in ("standard", "heavy")][:8]
    assert 5 <= first.count("heavy") <= 7, order


@pytest.mark.slow
async def test_a_waiting_request_rises_after_two_seconds_and_batch_no_higher_than_standard(
    platform: MoneyPlatform, load: Load
) -> None:
    """After two steps batch would stand beside premium, were its rise not bounded."""
    placed = await queue_up(platform, load, ["premium"] * 12 + ["standard", "batch"], waiting_s=2 * AGEING_S)
    check_classes(placed)
    assert [placed[0].tenant, placed[-1].tenant] == ["standard", "batch"], placed


async def test_full_gateways_let_the_lowest_class_give_way(platform: MoneyPlatform, load: Load) -> None:
    ended: set[tuple[str, int]] = set()

    async def overload(hold: asyncio.Task[None]) -> list[list[bool]]:
        """Whether requests are over, by class."""
        num_ended = len(load.ended)
        standard, batch = [load.send("standard") for _ in range(6)], list[asyncio.Task[None]]()
        while not hold.done() and not await has_queued(platform, 2 * MAX_OPEN - 1):
            if sum(not task.done() for task in batch) < 2 * MAX_OPEN - 7:
                batch.append(load.send("batch"))  # a full gateway refuses, the other one takes the next
        num_refused = len(load.ended)
        premium = [load.send("premium", num_tokens=1) for _ in range(4)]
        await eventually(lambda: hold.done() or len(load.ended) >= num_refused + 4, "four gave way")
        ended.clear()
        ended.update(load.ended[num_ended:])
        return [[task.done() for task in tasks] for tasks in (standard, premium, batch)]

    standard, premium, batch = await with_slot_taken(platform, load, overload)
    assert ended == {("batch", 503)}
    assert not any((*standard, *premium))
    assert batch.count(False) == 2 * MAX_OPEN - 7 - 4
