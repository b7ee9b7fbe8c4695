"""Windows of promised p99s in a real Redis: a credit is what the entries that are there say, at any gateway."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random

import pytest

from stratos.core.ledger.entry import (
    OWN_RANK,
    LedgerEntry,
    RequestOutcome,
    StageTimes,
    day_of,
    entry_from_text,
    entry_to_text,
)
from stratos.core.ledger.itls import ItlCounter, Itls
from stratos.core.ledger.pricing import Times, TokenCounts, is_promise_kept, price_request
from stratos.core.ledger.sums import due_of
from stratos.core.ledger.usage import MeterTag
from stratos.core.ledger.windows import window_share
from stratos.core.tenancy.plan import PREMIUM, Plan
from stratos.core.tenancy.prices import Discounts, Price
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.ledger.window_scripts import WINDOWS_KEPT_S
from stratos.store.ledger.window_store import WindowStore, window_of
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis

CONFIG = RecordStoreConfig()
NOW_MS = int(time.time() * 1000) // 86_400_000 * 86_400_000 + 3_600_000
"""Today, an hour after midnight."""
DAY = day_of(NOW_MS)


def plan_of(percent: int, window_s: int = 300, name: str = "gold") -> Plan:
    return replace(
        PREMIUM, name=name, prices={"default": Price(prompt=700_001, output=1_300_003)}, promise_window_s=window_s,
        discounts=Discounts(credit_percent=percent),
    )  # fmt: skip


def entry_of(
    request_id: str,
    plan: Plan,
    ttft_ms: int | None = 100,
    *,
    tenant: str = "tn_1",
    at_ms: int = 0,
    num: int = 1000,
    gaps_ms: Sequence[float] = (10,),
) -> LedgerEntry:
    """An entry of the gateway that answered."""
    times = Times() if ttft_ms is None else Times(ttft_us=ttft_ms * 1000, itl_us=10_000, itls=itls_of(gaps_ms))
    is_kept = is_promise_kept(plan, times, has_failed=False)
    counts = TokenCounts(num_prompt=num, num_output=num // 7)
    amounts = price_request(plan, "", counts, is_kept=is_kept)
    return LedgerEntry(
        request_id=request_id, tenant=tenant, plan=plan.name, outcome=RequestOutcome.FINISHED, counts=counts,
        tag=MeterTag(key_id="k", model="base", route="chat", arrived_unix_ms=NOW_MS + at_ms), amounts=amounts,
        times=times, is_kept=is_kept, window=window_share(plan, times, amounts),
    )  # fmt: skip


def itls_of(gaps_ms: Sequence[float]) -> Itls:
    counter = ItlCounter(50_000)
    for gap_ms in gaps_ms:
        counter.add(gap_ms / 1000, 1)
    return counter.itls()


def claim_of(entry: LedgerEntry, plan: Plan, attempt: int = 0) -> LedgerEntry:
    """What another gateway writes of it once the first one is dead."""
    amounts = price_request(plan, "", entry.counts)
    return replace(
        entry, outcome=RequestOutcome.RECOVERED, amounts=amounts, times=Times(), is_kept=None, rank=attempt,
        window=window_share(plan, Times(), amounts),
    )  # fmt: skip


@dataclass
class World:
    """Gateways as far as the ledger is concerned."""

    gateways: list[LedgerStore]
    reader: UsageReader
    windows: list[WindowStore]

    async def credit(self, tenant: str = "tn_1") -> int:
        return (await self.total(tenant))["window_credit"]

    async def total(self, tenant: str = "tn_1") -> Counter[str]:
        table = await self.reader.table(tenant, [DAY], ())
        return next(iter(table.values()), Counter())


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        redis = [await stack.enter_async_context(open_redis(redis_url, timeout_s=20)) for _ in range(2)]
        yield World(
            [LedgerStore(one, CONFIG) for one in redis], UsageReader(redis[0], CONFIG),
            [WindowStore(one, CONFIG) for one in redis],
        )  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """Windows computed from the entries that stand, without the store's arithmetic."""

    credit: int
    num_windows: int
    num_missed: int


def expected_of(entries: Sequence[LedgerEntry], plans: dict[str, Plan]) -> Expected:
    by_window: dict[tuple[str, int], list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        by_window[entry.plan, entry.tag.arrived_unix_ms // (plans[entry.plan].promise_window_s * 1000)].append(entry)
    credit = num_windows = num_missed = 0
    for (name, _), found in by_window.items():
        plan, is_missed = plans[name], False
        ttfts = sorted(e.times.ttft_us for e in found if e.times.ttft_us is not None)
        itls = sorted(e.times.itl_us for e in found if e.times.itl_us is not None)
        for times_us, promised_ms in ((ttfts, plan.ttft_p99_ms), (itls, plan.itl_p99_ms)):
            if times_us and promised_ms is not None:
                is_missed |= times_us[math.ceil(len(times_us) * 0.99) - 1] > promised_ms * 1000
        percent = plan.discounts.credit_percent
        charge = sum(e.amounts.net for e in found)
        own = sum(e.amounts.credit for e in found)
        if is_missed:
            at_most = sum(min(e.amounts.net * percent, 100 * (e.amounts.net - e.amounts.credit)) for e in found)
            credit += at_most // 100
            assert own + at_most // 100 <= charge
        num_windows += bool(ttfts or itls)
        num_missed += is_missed
    return Expected(credit, num_windows, num_missed)


@pytest.mark.parametrize("percent", [10, 80])
@pytest.mark.parametrize("num_gateways", [1, 2])
@pytest.mark.parametrize("num_tenants", [1, 300])
async def test_credits_are_those_of_the_entries_after_deaths_replays_and_in_any_order(
    world: World, num_tenants: int, num_gateways: int, percent: int
) -> None:
    """Each write may come twice, or as a claim of the other gateway before or after the entry of the own one."""
    random = Random(percent * 1000 + num_tenants + num_gateways)
    plans = {"gold": plan_of(percent), "long": plan_of(percent, 900, "long")}
    standing: dict[str, dict[str, LedgerEntry]] = defaultdict(dict)
    batches: list[tuple[int, list[LedgerEntry]]] = []
    for number in range(1200):
        plan, tenant = random.choice(list(plans.values())), f"tn_{random.randrange(num_tenants)}"
        ttft_ms = random.choices([None, 100, 700, 3000], [1, 40, 1, 1])[0]
        at_ms = random.randrange(4) * 300_000 + random.randrange(300_000)
        own = entry_of(f"gen-{number}", plan, ttft_ms, tenant=tenant, at_ms=at_ms, num=random.randrange(5000))
        claim = claim_of(own, plan, random.randrange(2))
        fate = random.choices(["own", "both", "dead"], [6, 2, 1])[0]
        written = {"own": [own], "both": [own, claim], "dead": [claim]}[fate]
        standing[tenant][own.request_id] = max(written, key=lambda entry: entry.rank)
        for entry in written:
            batches += [(random.randrange(num_gateways), [entry])] * random.choices([1, 2], [4, 1])[0]
    random.shuffle(batches)
    for gateway, store in enumerate(world.gateways[:num_gateways]):
        mine = [entry for at, entries in batches for entry in entries if at == gateway]
        for begin in range(0, len(mine), 200):
            await store.write(mine[begin : begin + 200])
    for tenant, entries in standing.items():
        expected, found = expected_of(list(entries.values()), plans), await world.total(tenant)
        assert (found["window_credit"], found["windows"], found["missed_windows"]) == (
            expected.credit, expected.num_windows, expected.num_missed,
        ), tenant  # fmt: skip
        due = sum(entry.amounts.due for entry in entries.values()) - expected.credit
        assert await world.gateways[0].spend(tenant, DAY[:7]) == due == due_of(found)
        assert due >= 0
        missed = await world.reader.missed_windows(tenant, [DAY])
        assert (len(missed), sum(window.credit for window in missed)) == (expected.num_missed, expected.credit)
    assert any(expected_of(list(entries.values()), plans).num_missed for entries in standing.values())


async def test_one_late_request_in_a_hundred_misses_nothing_and_two_do(world: World) -> None:
    plan = plan_of(10)
    entries = [entry_of(f"gen-{n}", plan) for n in range(99)]
    await world.gateways[0].write([*entries, entry_of("late", plan, 501)])
    assert await world.credit() == 0
    await world.gateways[1].write([entry_of("later", plan, 501)])
    charge = sum(entry.amounts.net for entry in entries) * 101 // 99
    assert await world.credit() == charge * 10 // 100
    assert [w.num_ttft_over for w in await world.reader.missed_windows("tn_1", [DAY])] == [2]
    await world.gateways[0].write([entry_of(f"more-{n}", plan) for n in range(99)])
    assert (await world.credit(), await world.reader.missed_windows("tn_1", [DAY])) == (0, [])


async def test_the_p99_of_itls_is_over_all_tokens_of_all_requests(world: World) -> None:
    """Each request is within the promise by its mean; the window has more than one late ITL in a hundred."""
    plan, random = plan_of(10), Random(7)
    at_ms = (int(time.time() * 1000) - NOW_MS) // 300_000 * 300_000
    gaps = [[random.uniform(4, 9) for _ in range(97)] + [120.0] * (n % 3) for n in range(60)]
    entries = [entry_of(f"gen-{n}", plan, at_ms=at_ms, gaps_ms=one) for n, one in enumerate(gaps)]
    assert max(sum(one) / len(one) for one in gaps) < 50
    own = [replace(entry, rank=OWN_RANK) for entry in entries]
    for store, part in ((world.gateways[0], own[:40]), (world.gateways[1], own[20:])):
        await store.write([claim_of(part[-1], plan), *part])
    every = sorted(gap for one in gaps for gap in one)
    (missed,) = await world.reader.missed_windows("tn_1", [entries[0].day])
    assert (missed.num_itl, missed.num_itl_over) == (len(every), sum(gap > 50 for gap in every))
    assert missed.num_itl_over > missed.num_itl // 100
    assert (missed.num_ttft, missed.num_ttft_over) == (60, 0)
    name = window_of(entries[0])
    shown = (await world.windows[0].look({name: False}))[name].window.itl_p99_us
    assert shown is not None
    exact_us = every[math.ceil(len(every) * 0.99) - 1] * 1000
    assert exact_us <= shown <= exact_us * 1.02**4 + 1, "of steps of 2 %, by fours where an answer spreads widely"


async def test_entries_of_the_version_before_count_their_means(world: World) -> None:
    plan = plan_of(10)
    text = entry_to_text(entry_of("gen-1", plan))
    old = json.loads(text)
    old["w"] = {"s": 300, "t": 5, "to": 0, "i": 7, "io": 1, "k": old["w"]["k"]}
    found = entry_from_text("gen-1", "tn_1", json.dumps(old))
    assert found.window is not None
    assert found.window.itls == Itls(1, 1, ((7, 1),))
    await world.gateways[0].write([found])
    (missed,) = await world.reader.missed_windows("tn_1", [DAY])
    assert (missed.num_itl, missed.num_itl_over) == (1, 1)


async def test_an_entry_that_takes_the_place_of_a_claim_is_judged_once(world: World) -> None:
    plan = plan_of(20)
    own = entry_of("gen-1", plan, 900)
    for entry in (claim_of(own, plan), own, claim_of(own, plan, 3), own):
        await world.gateways[0].write([entry])
    assert await world.credit() == own.amounts.net * 20 // 100
    total = await world.total()
    assert (total["windows"], total["missed_windows"]) == (1, 1)


@pytest.mark.parametrize("ttft_ms", [100, 900])
async def test_a_late_count_under_a_plan_without_promises_changes_no_window(world: World, ttft_ms: int) -> None:
    """The tenant has left its plan since; what the count adds is device time."""
    plan = plan_of(20)
    bare = replace(plan, ttft_p99_ms=None, itl_p99_ms=None)
    own = entry_of("gen-1", plan, ttft_ms)
    late = replace(claim_of(own, bare), stages=StageTimes(device_us=9, by_attempt=((0, 9),)))
    await world.gateways[0].write([own])
    before, spend = await world.total(), await world.gateways[0].spend("tn_1", DAY[:7])
    await world.gateways[1].write([late])
    assert await world.total() - before == Counter(device_us=9)
    assert await world.gateways[0].spend("tn_1", DAY[:7]) == spend
    assert len(await world.reader.missed_windows("tn_1", [DAY])) == before["missed_windows"]


async def test_an_entry_without_promises_takes_its_claim_out_of_the_window(world: World) -> None:
    """The tenant has got a plan with promises after the request began, whose gateway was taken for dead."""
    plan = plan_of(20)
    bare = replace(plan, ttft_p99_ms=None, itl_p99_ms=None)
    own, other = entry_of("gen-1", bare, 900), entry_of("gen-2", plan, 900)
    await world.gateways[0].write([claim_of(own, plan), own, other])
    assert await world.credit() == other.amounts.net * 20 // 100


async def test_a_window_whose_counts_are_lost_stays_judged_as_it_was(world: World, redis_url: str) -> None:
    plan = plan_of(20)
    own = entry_of("gen-1", plan, 900)
    await world.gateways[0].write([own])
    before, spend = await world.total(), await world.gateways[0].spend("tn_1", DAY[:7])
    async with open_redis(redis_url) as redis:
        await redis.delete(*[key async for key in redis.scan_iter("stratos:ledger:windows:*")])
    late = replace(claim_of(own, plan), stages=StageTimes(device_us=9, by_attempt=((0, 9),)))
    await world.gateways[1].write([late])
    assert await world.total() - before == Counter(device_us=9)
    assert await world.gateways[0].spend("tn_1", DAY[:7]) == spend


async def test_a_changed_plan_begins_windows_of_its_own(world: World) -> None:
    """One of another length, and one of another name, in the same minutes."""
    plans = [plan_of(10), plan_of(10, 60), plan_of(10, 300, "silver")]
    await world.gateways[0].write([entry_of(f"gen-{n}", plan, 900) for n, plan in enumerate(plans)])
    missed = await world.reader.missed_windows("tn_1", [DAY])
    assert {(w.plan, w.window_s) for w in missed} == {("gold", 300), ("gold", 60), ("silver", 300)}
    assert await world.credit() == sum(w.credit for w in missed)


async def test_what_comes_after_a_window_was_given_up_changes_none(world: World) -> None:
    plan = plan_of(10)
    old = entry_of("gen-1", plan, 900, at_ms=-(WINDOWS_KEPT_S + 2 * 86400) * 1000)
    await world.gateways[0].write([old, replace(old, rank=OWN_RANK + 1)])
    table = await world.reader.table("tn_1", [old.day], ())
    assert next(iter(table.values()))["window_credit"] == 0


async def test_the_p99_that_is_shown_is_at_most_2_percent_above(world: World, redis_url: str) -> None:
    plan, random = plan_of(10), Random(5)
    now_ms = int(time.time() * 1000) - NOW_MS
    at_ms = now_ms // 300_000 * 300_000
    ttfts_ms = [random.randrange(1, 5000) for _ in range(500)]
    entries = [entry_of(f"gen-{n}", plan, ttft, at_ms=at_ms) for n, ttft in enumerate(ttfts_ms)]
    await world.gateways[0].write(entries[:250])
    await world.gateways[1].write(entries[200:])
    name = window_of(entries[0])
    exact_us = sorted(ttfts_ms)[math.ceil(500 * 0.99) - 1] * 1000
    found = [(await one.look({name: is_over}))[name] for is_over in (False, True) for one in world.windows]
    assert [one.is_counted for one in found] == [False, False, True, False], "once, at its end"
    assert len({one.window for one in found}) == 1
    shown = found[0].window.ttft_p99_us
    assert shown is not None
    assert exact_us <= shown <= exact_us * 1.02 + 1
    (missed,) = await world.reader.missed_windows("tn_1", [entries[0].day])
    assert missed.ttft_p99_us == shown
    assert missed.itl_p99_us is not None
    assert 10_000 <= missed.itl_p99_us <= 10_200
    await world.gateways[0].write([entry_of("another", plan, 4999, at_ms=at_ms)])
    assert (await world.windows[0].look({name: False}))[name].window.num_ttft == 501
    assert await world.windows[0].look({replace(name, number=1): True}) == {}
    async with open_redis(redis_url) as redis:
        assert 0 < await redis.ttl(name.keys("stratos:ledger")[2]) <= 300 + 900


async def test_300_tenants_take_bounded_memory(world: World, redis_url: str) -> None:
    """Twelve windows of each: some kilobytes for an hour, and fewer than 100 bytes a window for two days."""
    plan = plan_of(10)
    entries = [
        entry_of(f"gen-{tenant}-{n}", plan, 100 + 13 * n, tenant=f"tn_{tenant}", at_ms=n * 300_000)
        for tenant in range(300)
        for n in range(12)
    ]
    for begin in range(0, len(entries), 600):
        await world.gateways[0].write(entries[begin : begin + 600])
    async with open_redis(redis_url) as redis:
        sizes: Counter[str] = Counter()
        async for key in redis.scan_iter(match="stratos:ledger:*", count=1000):
            kind = key.split(":")[2]
            if kind in ("windows", "missed", "histogram"):
                sizes[kind] += await redis.memory_usage(key)
                assert await redis.ttl(key) > 0, key
    assert sizes["windows"] <= 100 * len(entries)
    assert sizes["histogram"] <= 8192 * len(entries)
