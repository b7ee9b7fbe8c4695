"""What a sealer loses: the race for the note of its segment, the Redis that knew of it, or the segment itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stratos.core.ledger.entry import day_of
from stratos.core.ledger.segments import HEAD_KEY
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.entry_reader import EntryReader
from stratos.store.ledger.sealer import Sealer
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from tests.support.worlds.sealed_ledger import ACME, BRAVO, CONFIG, START_MS, SealedLedger, entry

DAY = day_of(START_MS)
DAYS = [(tenant, DAY) for tenant in (ACME, BRAVO)]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with open_redis(redis_url) as opened:
        yield opened


@pytest.fixture
def ledger(client: Redis, tmp_path: Path) -> SealedLedger:
    return SealedLedger(client, tmp_path / "objects")


class LateHead(LocalStore):
    """The first note of the last segment is on its way for as long as another sealer makes the next one."""

    def __init__(self, root: Path, beside: Callable[[], Awaitable[int]]) -> None:
        super().__init__(root)
        self._beside: Callable[[], Awaitable[int]] | None = beside

    async def put(self, key: str, path: Path) -> None:
        if key == HEAD_KEY and self._beside is not None:
            beside, self._beside = self._beside, None
            await beside()
        await super().put(key, path)


async def test_a_note_of_the_last_segment_that_comes_late_does_not_stay(ledger: SealedLedger) -> None:
    """It is all that is known of the end of the chain once Redis is lost."""

    async def beside() -> int:
        await ledger.store.write([entry(2, ms=START_MS + 1)])
        return await ledger.sealers[1].seal(START_MS + 2)

    slow = Sealer(
        ledger.unsealed, ledger.chain, SegmentStore(LateHead(ledger.folder, beside)), ledger.limits, "g-2",
        ledger.clock.now,
    )  # fmt: skip
    await ledger.store.write([entry(1)])
    await slow.seal(START_MS + 1)
    state = await ledger.chain.state()
    assert state.num_segments == 2
    assert await ledger.segments.head() == state.last
    await ledger.check(DAYS)


class BehindChain(Chain):
    """Redis fails over to a replica that lags behind: what was written since the last append is lost there."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client, CONFIG)
        self._client: Any = client
        self._before: dict[str, dict[str, str] | set[str] | list[tuple[str, float]]] = {}

    async def append(self, *args: Any, **named: Any) -> bool:
        for name in await self._client.keys("*"):
            kind = await self._client.type(name)
            read = {"hash": self._client.hgetall, "set": self._client.smembers}.get(kind)
            self._before[name] = await (read(name) if read else self._client.zrange(name, 0, -1, withscores=True))
        return await super().append(*args, **named)

    async def clear(self, *args: Any, **named: Any) -> None:
        before, self._before = self._before, {}
        if before:
            await self._client.flushall()
        for name, value in before.items():
            if isinstance(value, dict):
                await self._client.hset(name, mapping=value)
            else:
                await (
                    self._client.sadd(name, *value) if isinstance(value, set) else self._client.zadd(name, dict(value))
                )
        await super().clear(*args)


async def test_a_failover_that_loses_the_append_loses_no_entry(ledger: SealedLedger, client: Redis) -> None:
    await ledger.store.write([entry(n) for n in range(3)])
    chain = BehindChain(client)
    await Sealer(ledger.unsealed, chain, ledger.segments, ledger.limits, "g-2", ledger.clock.now).seal(START_MS + 1)
    assert len(await ledger.entries(ACME, DAY)) == 3
    await ledger.check(DAYS)
    await ledger.sealers[0].seal(START_MS + 1)
    assert await ledger.sealers[0].num_unsealed() == 0
    await ledger.check(DAYS)


async def test_an_entry_whose_segment_cannot_be_read_waits_by_itself(ledger: SealedLedger, tmp_path: Path) -> None:
    await ledger.store.write([entry(1, rank=1)])
    await ledger.sealers[0].seal(START_MS + 1)
    (segment,) = (ledger.folder / "ledger/segments").iterdir()
    segment.rename(tmp_path / "away")
    late, young = [entry(n) for n in range(1, 6)], [entry(n, ms=START_MS + 1) for n in range(10, 13)]
    for looks in (True, False):
        written = await ledger.store.write([*late, *young], looks=looks)
        assert [bool(one.waits_for) for one in written] == [True] * 5 + [False] * 3
    (tmp_path / "away").rename(segment)
    assert [one.is_new for one in await ledger.store.write([*late, *young])] == [True] * 5 + [False] * 3
    await ledger.check(DAYS)


class RedisInMotion(Redis):
    """Something happens once after the order of entries was asked for."""

    between: Callable[[], Awaitable[Any]] | None = None

    def zrange(self, *args: Any, **named: Any) -> Any:
        return self._then(super().zrange(*args, **named))

    async def _then(self, asked: Awaitable[Any]) -> Any:
        found, between, self.between = await asked, self.between, None
        if between is not None:
            await between()
        return found


async def test_no_entry_is_missing_on_a_page_that_is_read_while_others_are_sealed(
    ledger: SealedLedger, client: Redis
) -> None:
    """The defect: what left Redis between two answers moved those behind it up, past the place of the second one."""
    written = [entry(n, ms=START_MS + n // 2) for n in range(14)]
    await ledger.store.write(written)
    in_motion = RedisInMotion(connection_pool=client.connection_pool)
    reader = EntryReader(in_motion, CONFIG, ledger.segments)
    page = await reader.page(ACME, DAY, limit=4)
    shown = page.entries
    in_motion.between = lambda: ledger.sealers[0].seal(START_MS + 3)
    while page.following is not None:
        page = await reader.page(ACME, DAY, page.following, limit=4)
        shown += page.entries
    assert shown == sorted(written, key=lambda one: (one.tag.arrived_unix_ms, one.request_id))
