"""Entries on their way from Redis into segments: once each, whoever dies, and sums that are always those of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry, day_of
from stratos.core.ledger.segments import SegmentLine
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.sealer import SealLimits
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from tests.support.servers.redis_server import RedisServer
from tests.support.worlds.sealed_ledger import (
    ACME,
    BRAVO,
    CONFIG,
    HOUR_MS,
    START_MS,
    Crash,
    SealedLedger,
    entry,
)

DAY = day_of(START_MS)
DAYS = [(tenant, day_of(START_MS + n * 24 * HOUR_MS)) for tenant in (ACME, BRAVO) for n in (0, 1)]


@pytest.fixture(scope="session")
def server_url(_session_redis: RedisServer) -> str:
    """Of the server that all examples share."""
    return _session_redis.url


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as opened:
        yield opened


@pytest.fixture
def ledger(client: Redis, tmp_path: Path) -> SealedLedger:
    return SealedLedger(client, tmp_path / "objects")


async def test_an_hour_old_entry_leaves_redis_and_is_shown_as_before(ledger: SealedLedger, client: Redis) -> None:
    written = [entry(n, tenant, ms=START_MS + 10 * n) for n in range(7) for tenant in (ACME, BRAVO)]
    young = entry(99, ms=START_MS + HOUR_MS)
    await ledger.store.write([*written, young])
    before = await ledger.sums(ACME, DAY)
    ledger.clock.advance(5000)
    assert await ledger.sealers[0].turn() == 14
    assert await client.hkeys(f"stratos:ledger:entries:{ACME}:{DAY}") == ["gen-99"]
    assert await client.exists(*await client.keys(f"stratos:ledger:*:{BRAVO}:*")) == 2, "sums and spans stay"
    assert await ledger.entries(ACME, DAY, limit=2) == [*(one for one in written if one.tenant == ACME), young]
    assert [one async for one in ledger.usage.entries(BRAVO, DAY)] == [one for one in written if one.tenant == BRAVO]
    assert await ledger.sums(ACME, DAY) == before
    found = await ledger.store.find(ACME, DAY, (START_MS + 30, "gen-3"))
    assert found == next(one for one in written if one.request_id == "gen-3")
    assert await ledger.sealers[1].turn() == 0, "once an hour"
    await ledger.check(DAYS)


async def test_what_meets_before_the_segment_is_one_line_and_what_comes_later_corrects_it(
    ledger: SealedLedger,
) -> None:
    claimed, own = entry(1, gross=190, rank=2), entry(1, gross=80)
    await ledger.store.write([claimed, own])
    await ledger.store.write([entry(2, gross=50, rank=1)])
    await ledger.sealers[0].seal(START_MS + 1)
    assert [line.corrects for line in await ledger.sealed_lines()] == ["", ""]
    late = entry(2, gross=40)
    (written,) = await ledger.store.write([late])
    assert (written.is_new, written.month_due) == (True, 80 + 40)
    assert (await ledger.store.write([entry(2, gross=50, rank=1), late]))[0].is_new is False
    await ledger.check(DAYS)
    await ledger.sealers[0].seal(START_MS + 1)
    line = (await ledger.sealed_lines())[-1]
    assert (line.request_id, line.corrected_in, line.measures["gross"]) == ("gen-2", 0, -10)
    assert [one.amounts.gross for one in await ledger.entries(ACME, DAY)] == [80, 40]
    await ledger.check(DAYS)


async def test_an_entry_of_a_sealed_time_that_no_segment_has_is_new(ledger: SealedLedger) -> None:
    await ledger.store.write([entry(1)])
    await ledger.sealers[0].seal(START_MS + HOUR_MS)
    (written,) = await ledger.store.write([entry(2, ms=START_MS + 5)])
    assert written.is_new
    assert [one.request_id for one in await ledger.entries(ACME, DAY)] == ["gen-1", "gen-2"]
    await ledger.check(DAYS)


async def test_a_gateway_without_an_object_store_does_not_bill_twice_what_others_have_sealed(
    ledger: SealedLedger, client: Redis
) -> None:
    await ledger.store.write([entry(1)])
    await ledger.sealers[0].seal(START_MS + 1)
    (written,) = await LedgerStore(client, CONFIG).write([entry(1)])
    assert "no object store" in written.waits_for
    await ledger.check(DAYS)


async def test_beyond_a_number_the_oldest_go_at_once_in_segments_of_a_bounded_size(
    client: Redis, tmp_path: Path
) -> None:
    limits = SealLimits(max_unsealed=40, max_lines=30, older_days=2)
    ledger = SealedLedger(client, tmp_path / "objects", limits)
    await ledger.store.write([entry(n, BRAVO if n % 5 else ACME, ms=START_MS + 1000 * n) for n in range(100)])
    assert await ledger.sealers[0].turn() == 80
    state = await ledger.chain.state()
    assert state.num_segments == 3
    assert await ledger.sealers[0].num_unsealed() == 20
    assert {line.request_id for line in await ledger.sealed_lines()} == {f"gen-{n}" for n in range(80)}
    assert await ledger.sealers[0].turn() == 0
    await ledger.check(DAYS)


@pytest.mark.parametrize("left", range(13))
async def test_a_sealer_that_dies_at_any_step_is_followed_by_one_that_ends_its_work(
    ledger: SealedLedger, left: int
) -> None:
    """Steps: before and after the upload, the append, each line that leaves Redis, and the notes."""
    await ledger.store.write([entry(1), entry(2, gross=10, rank=3), entry(3, BRAVO)])
    ledger.fuse.left = left
    try:
        await ledger.sealers[0].seal(START_MS + 1)
    except Crash:
        await ledger.check(DAYS)
    ledger.fuse.left = None
    await ledger.store.write([entry(2, gross=30), entry(1, gross=77, rank=1)])
    await ledger.check(DAYS)
    await ledger.sealers[1].seal(START_MS + 1)
    await ledger.sealers[1].seal(START_MS + 1)
    assert await ledger.sealers[0].num_unsealed() == 0
    lines = [(line.request_id, bool(line.corrects)) for line in await ledger.sealed_lines()]
    assert sorted(request_id for request_id, is_later in lines if not is_later) == ["gen-1", "gen-2", "gen-3"]
    await ledger.check(DAYS)


class Interrupted(SegmentStore):
    """Something happens once between a look into segments and the write that follows it."""

    between: Callable[[], Awaitable[None]] | None = None

    async def find(self, *args: Any) -> tuple[int, SegmentLine] | None:
        found = await super().find(*args)
        if (between := self.between) is not None:
            self.between = None
            await between()
        return found


async def test_an_entry_that_is_sealed_between_a_look_and_the_write_is_looked_for_again(
    ledger: SealedLedger, client: Redis
) -> None:
    await ledger.store.write([entry(1)])
    await ledger.sealers[0].seal(START_MS + HOUR_MS)

    async def another_gateway_is_first() -> None:
        await ledger.store.write([entry(2, gross=70)])
        await ledger.sealers[0].seal(START_MS + HOUR_MS)

    segments = Interrupted(LocalStore(ledger.folder))
    segments.between = another_gateway_is_first
    (fate,) = await LedgerStore(client, CONFIG, segments=segments).write([entry(2, gross=70)])
    assert not fate.is_new
    await ledger.check(DAYS)


async def test_a_turn_ends_the_work_of_a_dead_sealer_also_where_nothing_is_due(ledger: SealedLedger) -> None:
    await ledger.store.write([entry(1), entry(2)])
    ledger.fuse.left = 3  # the first line is about to leave Redis
    with pytest.raises(Crash):
        await ledger.sealers[0].seal(START_MS + 1)
    assert await ledger.sealers[1].num_unsealed() == 2
    assert await ledger.sealers[1].turn() == 0
    assert await ledger.sealers[1].num_unsealed() == 0
    await ledger.check(DAYS)


async def test_of_two_sealers_at_a_time_one_appends(ledger: SealedLedger) -> None:
    await ledger.store.write([entry(n) for n in range(5)])
    sealed = await asyncio.gather(*(sealer.seal(START_MS + 1) for sealer in ledger.sealers))
    assert sorted(sealed) == [0, 5]
    assert len(await ledger.sealed_lines()) == 5
    ledger.clock.advance(7200)
    await ledger.store.write([entry(9)])
    turns = await asyncio.gather(*(sealer.turn() for sealer in ledger.sealers))
    assert sorted(turns) == [0, 1]
    await ledger.check(DAYS)


async def test_each_entry_is_on_one_page_also_when_it_is_sealed_between_or_within_pages(ledger: SealedLedger) -> None:
    written = [entry(n, ms=START_MS + n // 3) for n in range(30)]
    await ledger.store.write(written)
    shown: list[LedgerEntry] = []
    page = await ledger.reader.page(ACME, DAY, limit=4)
    for horizon in range(1, 20):
        shown += page.entries
        if page.following is None:
            break
        page, _ = await asyncio.gather(
            ledger.reader.page(ACME, DAY, page.following, 4), ledger.sealers[0].seal(START_MS + horizon)
        )
    assert shown == sorted(written, key=lambda one: (one.tag.arrived_unix_ms, one.request_id))


async def test_entries_of_an_older_version_are_shown_and_sealed(ledger: SealedLedger, client: Redis) -> None:
    await ledger.store.write([entry(n, ms=START_MS + n) for n in range(3)])
    await client.delete(f"stratos:ledger:order:{ACME}:{DAY}", "stratos:ledger:open")
    assert len(await ledger.entries(ACME, DAY)) == 3
    await client.delete(f"stratos:ledger:order:{ACME}:{DAY}", "stratos:ledger:open")
    ledger.clock.advance(24 * 3600)
    assert await ledger.sealers[0].turn() == 3
    assert [one.request_id for one in await ledger.entries(ACME, DAY)] == ["gen-0", "gen-1", "gen-2"]
    await ledger.check(DAYS)


async def test_a_segment_that_is_not_what_was_written_is_not_read(ledger: SealedLedger) -> None:
    await ledger.store.write([entry(1)])
    await ledger.sealers[0].seal(START_MS + 1)
    (path,) = (ledger.folder / "ledger/segments").iterdir()
    path.write_bytes(path.read_bytes().replace(b"\x08", b"\x09", 1))
    reader = SealedLedger(ledger.redis, ledger.folder)
    with pytest.raises(DependencyDown, match="segment 0 of the ledger"):
        await reader.entries(ACME, DAY)
    (written,) = await reader.store.write([entry(1, gross=3)])
    assert "segment 0 of the ledger" in written.waits_for


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "late", "wait", "turn", "crash", "both", "beside"]),
        st.integers(0, 11),
        st.integers(0, 9),
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=30)
@given(steps=STEPS)
def test_whatever_happens_sums_are_those_of_entries_and_of_lines(server_url: str, steps: list[Step]) -> None:
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
    asyncio.run(walk(server_url, steps))


async def walk(url: str, steps: list[Step]) -> None:
    async with open_redis(url) as client:
        with TemporaryDirectory() as folder:
            limits = SealLimits(max_unsealed=6, max_lines=4, older_days=2)
            ledger = SealedLedger(client, Path(folder) / "objects", limits)
            for name, first, second in steps:
                await WALK[name](ledger, first, second)
                await ledger.check(DAYS)
            await ledger.sealers[0].seal(1 << 50)
            assert await ledger.sealers[0].num_unsealed() == 0
            await ledger.check(DAYS)


def written(number: int, kind: int) -> LedgerEntry:
    """One of the entries that a request may have: claims of attempts, its own, with device time that differs."""
    tenant, ms = (ACME, BRAVO)[number % 2], START_MS + number * 3 * HOUR_MS
    made = entry(number, tenant, ms=ms, gross=10 + kind, rank=kind if kind < 7 else 1_000_000)
    return made if kind < 9 else replace(made, stages=replace(made.stages, by_attempt=((4, 400),), device_us=400))


async def write(ledger: SealedLedger, number: int, kind: int) -> None:
    await ledger.store.write([written(number, kind), written((number + 1) % 12, kind)])


async def late(ledger: SealedLedger, number: int, kind: int) -> None:
    """The entries of many, some of which are sealed."""
    await ledger.store.write([written(one, kind) for one in range(number)])


async def wait(ledger: SealedLedger, hours: int, _: int) -> None:
    ledger.clock.advance(3600.0 * hours)


async def turn(ledger: SealedLedger, place: int, _: int) -> None:
    await ledger.sealers[place % 2].turn()


async def crash(ledger: SealedLedger, place: int, left: int) -> None:
    ledger.fuse.left = left
    try:
        await ledger.sealers[place % 2].seal(START_MS + place * 4 * HOUR_MS)
    except Crash:
        ledger.sealers[place % 2] = ledger.sealer("new")
    ledger.fuse.left = None


async def both(ledger: SealedLedger, number: int, kind: int) -> None:
    horizon = START_MS + number * 3 * HOUR_MS
    async with asyncio.TaskGroup() as tasks:
        for sealer in ledger.sealers:
            tasks.create_task(sealer.seal(horizon))


async def beside(ledger: SealedLedger, number: int, kind: int) -> None:
    """A seal, a write of what it moves and a read, all at once."""
    tenant, day = DAYS[number % 4]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ledger.sealers[0].seal(START_MS + number * 3 * HOUR_MS))
        tasks.create_task(late(ledger, number, kind))
        tasks.create_task(ledger.entries(tenant, day, limit=2))


WALK: dict[str, Callable[[SealedLedger, int, int], Awaitable[None]]] = {
    "write": write, "late": late, "wait": wait, "turn": turn, "crash": crash, "both": both, "beside": beside,
}  # fmt: skip
