"""The ledger in a real Redis: each request once, and sums that are those of its entries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from stratos.core.ledger.entry import OWN_RANK, RequestOutcome, StageTimes, claim_rank, day_of, num_attempts
from stratos.core.ledger.pricing import Amounts, TokenCounts
from stratos.core.ledger.sums import due_of
from stratos.core.ledger.windows import Sample, WindowShare
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from tests.support.worlds.usage_counts import ENTRY, TAG

CLAIMED = replace(
    ENTRY, outcome=RequestOutcome.RECOVERED, counts=TokenCounts(num_prompt=10, num_output=9),
    amounts=Amounts(gross=190), rank=0,
)  # fmt: skip


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[LedgerStore]:
    async with open_redis(redis_url) as redis:
        yield LedgerStore(redis, RecordStoreConfig())


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[UsageReader]:
    async with open_redis(redis_url, max_connections=2) as redis:
        yield UsageReader(redis, RecordStoreConfig())


async def total(reader: UsageReader, tenant: str = "acme", day: str = ENTRY.day) -> Counter[str]:
    by_all = await reader.table(tenant, [day], ())
    return +next(iter(by_all.values()), Counter())


async def test_an_entry_is_written_once_however_often_and_however_many_write_it(
    store: LedgerStore, reader: UsageReader
) -> None:
    many = [replace(ENTRY, request_id=f"gen-{number}") for number in range(50)]
    await asyncio.gather(*(store.write(many) for _ in range(4)))
    expected = Counter({name: 50 * value for name, value in ENTRY.measures.items()})
    assert await total(reader) == expected
    assert {entry.request_id async for entry in reader.entries("acme", ENTRY.day)} == {e.request_id for e in many}
    assert await store.spend("acme", ENTRY.day[:7]) == due_of(expected) == 50 * 80
    assert await store.tenants() == ["acme"]


async def test_entries_of_many_tenants_and_days_in_one_write_are_those_of_a_write_for_each(
    store: LedgerStore, reader: UsageReader
) -> None:
    """More than one script takes, in any order: claims, own entries and repetitions, with and without windows."""
    at_ms, order = int(time.time() * 1000), Random(7)
    entries = []
    for number in range(60):
        tag = replace(TAG, model=f"m{number % 3}", arrived_unix_ms=at_ms - number * 1_800_000)
        window = WindowShare(window_s=300, ttft=Sample(bucket=number, is_over=number % 5 == 0), stake=900)
        own = replace(
            ENTRY, request_id=f"gen-{number % 45}", tag=tag, is_kept=bool(number % 2),
            window=window if number % 4 else None, amounts=Amounts(gross=100 + number, credit=number % 7),
        )  # fmt: skip
        entries += [own, replace(own, outcome=RequestOutcome.RECOVERED, rank=number % 3, amounts=Amounts(gross=7))]
    order.shuffle(entries)
    many, single = (
        [replace(one, tenant=f"{kind}-{number % 7}") for number, one in enumerate(entries)] for kind in ("m", "s")
    )
    at_once = await store.write(many)
    one_by_one = [written for one in single for written in await store.write([one])]
    assert [(one.is_new, one.month_due) for one in at_once] == [(one.is_new, one.month_due) for one in one_by_one]
    days = sorted({one.day for one in entries})
    for number in range(7):
        of_many, of_single = [
            (
                await reader.table(name, days, ("day", "model")),
                await reader.spans(name, days),
                await reader.missed_windows(name, days),
                [replace(one, tenant="") for day in days async for one in reader.entries(name, day)],
            )
            for name in (f"m-{number}", f"s-{number}")
        ]
        assert of_many == of_single
    assert await store.tenants() == sorted({one.tenant for one in many + single})


async def test_what_the_own_gateway_wrote_takes_the_place_of_a_claim_and_not_the_other_way(
    store: LedgerStore, reader: UsageReader
) -> None:
    later = replace(CLAIMED, rank=2, amounts=Amounts(gross=200))
    assert [(w.is_new, w.month_due) for w in await store.write([CLAIMED, later, CLAIMED])] == [
        (True, 190), (True, 200), (False, 200),
    ]  # fmt: skip
    assert await total(reader) == +Counter(later.measures)
    assert ENTRY.rank == OWN_RANK
    assert [(w.is_new, w.month_due) for w in await store.write([ENTRY, later, ENTRY])] == [
        (True, 80), (False, 80), (False, 80),
    ]  # fmt: skip
    assert await total(reader) == Counter(ENTRY.measures)
    assert [entry async for entry in reader.entries("acme", ENTRY.day)] == [ENTRY]


async def test_a_claim_of_a_later_gateway_takes_the_place_of_what_an_earlier_one_wrote(
    store: LedgerStore, reader: UsageReader
) -> None:
    """The client left the first one; the second one had all of the answer, and was killed before it wrote that."""
    own = [replace(ENTRY, rank=OWN_RANK + number, amounts=Amounts(gross=100 + number)) for number in range(3)]
    attempts = (0, 1, 1000, 1001, 2000)
    claims = [replace(CLAIMED, rank=claim_rank(a), amounts=Amounts(gross=a + 1)) for a in attempts]
    order = [*claims[:2], own[0], *claims[2:4], own[1], claims[4], own[2]]
    for number, entry in enumerate(order):
        for written in (entry, *order[:number]):
            [found] = await store.write([written])
            assert (found.is_new, found.month_due) == (written is entry, entry.amounts.gross), (
                entry.rank,
                written.rank,
            )
    assert [num_attempts(claim.rank) for claim in claims] == [1, 2, 1, 2, 1]
    [kept] = [entry async for entry in reader.entries("acme", ENTRY.day)]
    assert kept.rank == OWN_RANK + 2


async def test_a_replaced_entry_that_cost_nothing_is_taken_back_as_well(
    store: LedgerStore, reader: UsageReader
) -> None:
    """As with a plan without prices: what is taken back of the month's spend is nothing, and not minus nothing."""
    free = replace(ENTRY, amounts=Amounts(), tag=replace(TAG, arrived_unix_ms=int(time.time() * 1000)))
    await store.write([replace(free, outcome=RequestOutcome.RECOVERED, rank=0)])
    await store.write([free])
    assert await total(reader, day=free.day) == +Counter(free.measures)
    await store.write([replace(free, rank=0, tenant="tn_1")])
    assert await store.move("acme", "tn_1") == 1
    assert await total(reader, "tn_1", free.day) == +Counter(free.measures)


async def test_a_replaced_entry_of_another_group_leaves_nothing_there(store: LedgerStore, reader: UsageReader) -> None:
    await store.write([replace(CLAIMED, tag=replace(TAG, adapter="a")), ENTRY])
    by_adapter = await reader.table("acme", [ENTRY.day], ["adapter"])
    assert {group.adapter: sum(sums.values()) for group, sums in by_adapter.items()} == {
        "": sum(ENTRY.measures.values()), "a": 0,
    }  # fmt: skip


async def test_a_ledger_of_an_older_version_becomes_that_of_its_tenant(store: LedgerStore, reader: UsageReader) -> None:
    tag = replace(TAG, arrived_unix_ms=int(time.time() * 1000))
    old = [replace(ENTRY, request_id=f"gen-{n}", tag=tag) for n in range(3)]
    await store.write(old)
    assert await store.move("acme", "tn_1") == 1
    day = old[0].day
    assert await total(reader, "tn_1", day) == Counter({name: 3 * value for name, value in ENTRY.measures.items()})
    assert await store.tenants() == ["tn_1"]
    assert {entry.tenant async for entry in reader.entries("tn_1", day)} == {"tn_1"}
    assert (await store.spend("acme", day[:7]), await store.spend("tn_1", day[:7])) == (0, 240)
    assert await store.move("acme", "tn_1") == 0, "again changes nothing"
    assert await store.spend("tn_1", day[:7]) == 240


async def test_a_gateway_of_an_older_version_beside_a_new_one_bills_nothing_twice(
    store: LedgerStore, reader: UsageReader
) -> None:
    """Both wrote entries of the same requests, by the name and by the id; the one of the higher rank stays."""
    tag = replace(TAG, arrived_unix_ms=int(time.time() * 1000))
    by_name = [replace(ENTRY, request_id=f"gen-{n}", tag=tag) for n in (1, 2)]
    claimed = [replace(CLAIMED, request_id=f"gen-{n}", tag=tag, tenant="tn_1") for n in (2, 3)]
    await store.write([*by_name, replace(CLAIMED, request_id="gen-4", tag=tag)])
    await store.write([*claimed, replace(ENTRY, request_id="gen-4", tag=tag, tenant="tn_1")])
    assert await store.move("acme", "tn_1") == 1
    day = by_name[0].day
    found = {entry.request_id: entry async for entry in reader.entries("tn_1", day)}
    assert {request_id: entry.rank for request_id, entry in found.items()} == {
        "gen-1": OWN_RANK, "gen-2": OWN_RANK, "gen-3": 0, "gen-4": OWN_RANK,
    }  # fmt: skip
    expected = sum((Counter(entry.measures) for entry in found.values()), Counter[str]())
    assert await total(reader, "tn_1", day) == expected
    assert await store.spend("tn_1", day[:7]) == due_of(expected)


@pytest.mark.parametrize("order", list(permutations(range(4))))
async def test_device_time_is_that_of_all_attempts_whoever_told_of_them_and_when(
    store: LedgerStore, reader: UsageReader, order: tuple[int, ...]
) -> None:
    """The own entry waited for its last attempt alone; the first two were claimed, and one of them was told again."""
    big = 8_123_456_789_012_345
    own = replace(
        ENTRY, amounts=Amounts(gross=big, cached_discount=1),
        stages=StageTimes(queue_us=7, device_us=4000, by_attempt=((2, 4000),)),
    )  # fmt: skip
    first = replace(CLAIMED, stages=StageTimes(device_us=100, by_attempt=((0, 100),)), rank=0)
    second = replace(CLAIMED, stages=StageTimes(device_us=20, by_attempt=((1, 20),)), rank=1)
    written = [own, first, second, first]
    for place in order:
        await store.write([written[place]])
    expected = replace(
        own, stages=StageTimes(queue_us=7, device_us=4120, by_attempt=((0, 100), (1, 20), (2, 4000)))
    )  # fmt: skip
    assert [entry async for entry in reader.entries("acme", ENTRY.day)] == [expected]
    assert await total(reader) == Counter(expected.measures)
    assert await store.spend("acme", ENTRY.day[:7]) == big - 1


async def test_gateways_know_each_others_workers(store: LedgerStore) -> None:
    old = WorkerRef(worker_id="d-0", incarnation="one", address="host:1", role=WorkerRole.DECODE)
    new = replace(old, incarnation="two")
    await store.note_workers([old])
    await store.note_workers([new])
    await store.forget_worker(old)
    assert await store.workers() == [new]
    await store.forget_worker(new)
    assert await store.workers() == []


async def test_sums_of_many_keys_are_read_in_pieces_and_days_beside_each_other(
    store: LedgerStore, reader: UsageReader
) -> None:
    days = [TAG.arrived_unix_ms + n * 86_400_000 for n in range(12)]
    tags = [replace(TAG, key_id=f"k{n}", arrived_unix_ms=day) for n in range(300) for day in days[:: 1 + n % 3]]
    entries = [replace(ENTRY, request_id=f"gen-{n}", tag=tag) for n, tag in enumerate(tags)]
    await store.write(entries)
    names = [day_of(day) for day in days]
    (row,) = (await reader.table("acme", names, ())).values()
    assert row["requests"] == len(entries)
    by_key = await reader.table("acme", names, ["key_id"])
    assert {sums["requests"] for sums in by_key.values()} == {12, 6, 4}
    by_day = await reader.table("acme", names, ["day"])
    assert {group.day: sums["requests"] for group, sums in by_day.items()} == Counter(entry.day for entry in entries)


async def test_promises_are_summed_by_five_minutes_and_taken_back_with_their_entry(
    store: LedgerStore, reader: UsageReader
) -> None:
    broken = replace(CLAIMED, is_kept=False, amounts=Amounts(gross=50, credit=5))
    await store.write([broken])
    span = ("base", TAG.arrived_unix_ms // 300_000)
    assert await reader.spans("acme", [ENTRY.day]) == [{span: Counter(promises=1, violations=1, credit=5)}]
    later = replace(ENTRY, is_kept=True, tag=replace(TAG, arrived_unix_ms=TAG.arrived_unix_ms + 300_000))
    await store.write([later, replace(ENTRY, request_id="gen-2")])
    (spans,) = await reader.spans("acme", [ENTRY.day])
    assert {name: +sums for name, sums in spans.items()} == {
        span: Counter(), (span[0], span[1] + 1): Counter(promises=1),
    }  # fmt: skip
    assert spans[span[0], span[1] + 1]["promises"] == 1


async def test_a_note_that_cannot_be_read_hides_no_other_and_ends_no_gateway(
    store: LedgerStore, redis_url: str
) -> None:
    """A newer version may know roles that this one does not; who looks for workers is a root task."""
    known = WorkerRef(worker_id="w", incarnation="i", address="10.0.0.1:1", role=WorkerRole.DECODE)
    newer = '{"worker_id": "w", "incarnation": "i", "role": "translator"}'
    await store.note_workers([known])
    async with open_redis(redis_url) as redis:
        await redis.hset("stratos:ledger:workers", mapping={"a:1": "{", "b:1": newer, "c:1": "[]", "d:1": "7"})
        assert await store.workers() == [known]
        await redis.hset("stratos:ledger:workers", known.address, newer)
    await store.forget_worker(known)
    assert await store.workers() == []
