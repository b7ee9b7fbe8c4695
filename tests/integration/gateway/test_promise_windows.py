"""Promised p99s at two gateways over one Redis: what counts, one credit, and one count in the metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.core.ledger.entry import LedgerEntry, RequestOutcome, day_of
from stratos.core.tenancy.prices import Discounts, Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.ledger.window_store import WindowStore, window_of
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.ledger.billing import LedgerAccess
from stratos_gateway.ledger.promise_windows import SETTLE_S, PromiseWindows
from stratos_gateway.metrics import GatewayMetrics
from tests.support.waiting import eventually
from tests.support.worlds.gateway_keys import KEY, PLAN
from tests.support.worlds.gateway_world import World, gateway_world

CONFIG = RecordStoreConfig()
PROMISED = replace(
    PLAN, prices={"default": Price(prompt=2_000_000, output=6_000_000)}, discounts=Discounts(credit_percent=10),
    ttft_p99_ms=60_000, itl_p99_ms=60_000, promise_window_s=3600,
)  # fmt: skip


@dataclass
class Pair:
    """Two gateways, and what they both know."""

    worlds: list[World]
    ledger: LedgerStore
    reader: UsageReader
    redis_url: str

    async def ask(self, gateway: int, **fields: Any) -> int:
        body = {
            "model": "base",
            "prompt": [5, 6, 7, 8],
            "temperature": 0,
            "max_tokens": 4,
            "ignore_eos": True,
            **fields,
        }
        return (await self.worlds[gateway].http.post("/v1/completions", json=body)).status_code

    def promise(self, **fields: Any) -> None:
        for world in self.worlds:
            world.keys.tenants[KEY] = replace(world.keys.tenants[KEY], plan=replace(PROMISED, **fields))

    async def entries(self, number: int) -> list[LedgerEntry]:
        """All entries, once there are so many."""
        found: list[LedgerEntry] = []

        async def are_there() -> bool:
            found[:] = [e for day in self.days for e in [e async for e in self.reader.entries("one", day)]]
            return len(found) >= number

        await eventually(are_there, f"{number} entries")
        assert len(found) == number
        return found

    @property
    def days(self) -> list[str]:
        """Today, and the day before at midnight."""
        now_ms = int(time.time() * 1000)
        return sorted({day_of(now_ms - 60_000), day_of(now_ms)})

    async def sums(self) -> Counter[str]:
        table = await self.reader.table("one", self.days, ())
        return next(iter(table.values()), Counter())


@pytest.fixture
async def pair(redis_url: str) -> AsyncIterator[Pair]:
    async with pair_at(redis_url) as made:
        yield made


@asynccontextmanager
async def pair_at(redis_url: str, num_workers: int = 1) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        ledger, worlds = LedgerStore(redis, CONFIG), []
        for _ in range(2):
            access = LedgerAccess(store=ledger, plan_of=lambda tenant: PROMISED, windows=WindowStore(redis, CONFIG))
            quick = {"interval_s": 0.02, "count_wait_s": 0.3}
            worlds.append(
                await stack.enter_async_context(gateway_world(num_workers, ledger_access=access, ledger=quick))
            )
        made = Pair(worlds, ledger, UsageReader(redis, CONFIG), redis_url)
        made.promise()
        yield made


async def test_windows_that_kept_their_promise_earn_nothing(pair: Pair) -> None:
    assert [await pair.ask(n % 2) for n in range(6)] == [200] * 6
    entries = await pair.entries(6)
    assert all(entry.window is not None and entry.window.ttft is not None for entry in entries)
    sums = await pair.sums()
    assert (sums["missed_windows"], sums["window_credit"]) == (0, 0)
    assert sums["windows"] == len({window_of(entry) for entry in entries})


async def test_requests_of_both_gateways_are_one_window_with_one_credit(pair: Pair) -> None:
    """Slow at one gateway alone: the window's charge is that of both."""
    pair.promise(itl_p99_ms=5)
    pair.worlds[1].worker.step_s = 0.02
    assert [await pair.ask(n % 2) for n in range(6)] == [200] * 6
    entries = await pair.entries(6)
    sums, charge = await pair.sums(), sum(entry.amounts.net for entry in entries)
    assert charge == 6 * (4 * 2 + 4 * 6)
    if len({window_of(entry) for entry in entries}) == 1:  # an hour may have ended in between
        assert (sums["window_credit"], sums["windows"], sums["missed_windows"]) == (charge * 10 // 100, 1, 1)
    month = entries[-1].day[:7]
    assert await pair.ledger.spend("one", month) == charge - sums["window_credit"]


async def test_a_window_counts_times_between_tokens_and_not_requests(pair: Pair) -> None:
    assert [await pair.ask(n % 2, max_tokens=n + 1) for n in range(4)] == [200] * 4
    entries = await pair.entries(4)
    itls = sorted(
        0 if entry.window is None or entry.window.itls is None else entry.window.itls.num for entry in entries
    )
    assert itls == [0, 1, 2, 3]


async def test_what_a_dead_gateway_left_is_part_of_the_charge_and_not_judged(pair: Pair) -> None:
    pair.promise(itl_p99_ms=1)
    pair.worlds[0].worker.step_s = 0.02
    await pair.ask(0)
    worker = pair.worlds[0].worker
    lost = worker.submits[-1].__class__()
    lost.CopyFrom(worker.submits[-1])
    lost.request_id, lost.attempt = "gen-lost", 1
    await worker.count(worker.sessions[-1], lost, 7)
    entries = {entry.request_id: entry for entry in await pair.entries(2)}
    share = entries["gen-lost"].window
    assert entries["gen-lost"].outcome is RequestOutcome.RECOVERED
    assert share is not None
    assert (share.ttft, share.itls, share.stake) == (None, None, (8 + 42) * 10)
    if len({window_of(entry) for entry in entries.values()}) == 1:
        assert (await pair.sums())["window_credit"] == (32 + 50) * 10 // 100


async def test_what_was_refused_before_it_ran_is_in_no_window_and_what_the_platform_failed_is_late(
    redis_url: str,
) -> None:
    """Both workers skip a token, which no recovery can mend."""
    async with pair_at(redis_url, num_workers=2) as pair:
        assert await pair.ask(0, max_tokens=-1) == 400
        assert await pair.ask(0, model="none") == 404
        for worker in pair.worlds[0].workers:
            worker.script, worker.skip_after = (lambda submit, choice: [9] * 1000), 3
        assert await pair.ask(0, max_tokens=900) == 503
        (entry,) = await pair.entries(1)
        assert entry.window is not None
        assert entry.window.itls is not None
        assert entry.window.itls.num_over == 1, "the time that never ended"
        assert ((await pair.sums())["missed_windows"], entry.amounts.net) == (1, 0)


@pytest.mark.parametrize(("promised_ms", "is_late"), [(1, True), (60_000, None)])
async def test_a_client_that_leaves_before_its_first_token_has_waited_too_long_or_says_nothing(
    pair: Pair, promised_ms: int, is_late: bool | None
) -> None:
    pair.promise(ttft_p99_ms=promised_ms)
    worker = pair.worlds[0].worker
    worker.hang_after = 0
    asking = asyncio.create_task(pair.ask(0, stream=True))
    await eventually(lambda: worker.submits, "the worker has it")
    began_s = time.monotonic()
    await eventually(lambda: time.monotonic() > began_s + 0.01, "longer than the one promise, and not than the other")
    asking.cancel()
    (entry,) = await pair.entries(1)
    assert entry.window is not None
    assert (entry.window.ttft and entry.window.ttft.is_over) is is_late


async def test_a_window_is_counted_once_by_a_gateway_that_lives(pair: Pair) -> None:
    pair.promise(itl_p99_ms=5)
    pair.worlds[1].worker.step_s = 0.02
    for gateway in (0, 1):
        await pair.ask(gateway)
    entries = await pair.entries(2)
    over_s = max(window_of(entry).end_unix_s for entry in entries) + SETTLE_S
    async with open_redis(pair.redis_url) as redis:
        seen, now_s = [], time.time()
        for _ in range(3):
            registry = CollectorRegistry()
            windows = PromiseWindows(
                WindowStore(redis, CONFIG), GatewayMetrics(registry), {"one": "acme"}.get, lambda: now_s
            )
            for entry in entries:
                windows.note(entry)
            await windows.turn()
            seen.append((windows, registry))
        labels = {"tenant": "acme", "plan": PLAN.name}

        def ended(registry: CollectorRegistry, outcome: str) -> float | None:
            return registry.get_sample_value("stratos_promise_windows_total", {**labels, "outcome": outcome})

        assert [ended(registry, "missed") for _, registry in seen] == [0, 0, 0], "it runs"
        now_s = over_s
        for windows, _ in seen[1:]:  # the first gateway is dead
            await windows.turn()
        num_missed = (await pair.sums())["missed_windows"]
        assert [ended(registry, "missed") for _, registry in seen[1:]] == [num_missed, 0]
        credits = [r.get_sample_value("stratos_promise_window_credit_total", labels) for _, r in seen[1:]]
        assert credits == [(await pair.sums())["window_credit"] / 1e6, 0]
        p99s = [
            r.get_sample_value("stratos_promise_window_p99_seconds", {**labels, "promise": "itl"}) for _, r in seen[1:]
        ]
        assert p99s[0] == p99s[1]
        assert p99s[0] is not None
        assert p99s[0] > 0.005
        now_s += 4 * 3600
        await seen[1][0].turn()
        gone = seen[1][1].get_sample_value("stratos_promise_window_p99_seconds", {**labels, "promise": "itl"})
        assert gone is None, "nothing is known of a tenant that asks nothing"
