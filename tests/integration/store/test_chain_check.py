"""A chain of segments to which something was done: the segment is named, and so is a sum that does not add up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.core.ledger.entry import day_of
from stratos.store.ledger.recovery.chain_check import ChainCheck, ChainReport
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from tests.support.worlds.sealed_ledger import ACME, BRAVO, START_MS, SealedLedger, entry

DAY = day_of(START_MS)


@pytest.fixture
async def ledger(redis_url: str, tmp_path: Path) -> AsyncIterator[SealedLedger]:
    """Three segments; the last one corrects a line of the first."""
    async with open_redis(redis_url) as client:
        made = SealedLedger(client, tmp_path / "objects")
        await made.store.write([entry(1), entry(2, BRAVO), entry(3, gross=50, rank=1)])
        await made.sealers[0].seal(START_MS + 1)
        await made.store.write([entry(4, ms=START_MS + 10)])
        await made.sealers[0].seal(START_MS + 20)
        await made.store.write([entry(3, gross=40)])
        await made.sealers[0].seal(START_MS + 20)
        yield made


async def check(ledger: SealedLedger) -> ChainReport:
    segments = SegmentStore(LocalStore(ledger.folder))
    return await ChainCheck(ledger.chain, segments, ledger.unsealed, ledger.usage).run()


def objects(ledger: SealedLedger) -> list[Path]:
    return sorted((ledger.folder / "ledger/segments").iterdir())


async def test_a_whole_chain_is_whole_also_beside_entries_in_redis(ledger: SealedLedger) -> None:
    report = await check(ledger)
    assert (report.problems, report.num_segments, report.num_lines, report.num_days) == ([], 3, 5, 2)
    await ledger.store.write([entry(5)])
    report = await check(ledger)
    assert (report.problems, report.num_days) == ([], 1), "a day in motion is not compared"


def remove(found: list[Path]) -> None:
    found[1].unlink()


def alter_a_line(found: list[Path]) -> None:
    data = bytearray(found[1].read_bytes())
    data[30] ^= 1
    found[1].write_bytes(bytes(data))


def alter_the_index(found: list[Path]) -> None:
    data = bytearray(found[1].read_bytes())
    data[-20] ^= 1
    found[1].write_bytes(bytes(data))


def cut_short(found: list[Path]) -> None:
    found[1].write_bytes(found[1].read_bytes()[:-50])


def cut_to_nothing(found: list[Path]) -> None:
    found[1].write_bytes(b"")


def lengthen(found: list[Path]) -> None:
    found[1].write_bytes(found[1].read_bytes() * 2)


def exchange_the_contents(found: list[Path]) -> None:
    first, second = found[1].read_bytes(), found[2].read_bytes()
    found[1].write_bytes(second)
    found[2].write_bytes(first)


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (remove, ["segment 1: it is missing"]),
        (alter_a_line, ["segment 1: lines of"]),
        (alter_the_index, ["segment 1: its index"]),
        (cut_short, ["segment 1: it ends early"]),
        (cut_to_nothing, ["segment 1: it ends early"]),
        (lengthen, ["segment 1: something follows"]),
        (exchange_the_contents, ["segment 1: ", "segment 2: "]),
    ],
)
async def test_what_was_done_to_a_segment_is_named(
    ledger: SealedLedger, plant: Callable[[list[Path]], None], named: list[str]
) -> None:
    plant(objects(ledger))
    problems = (await check(ledger)).problems
    assert [problem[: len(begin)] for problem, begin in zip(problems, named, strict=True)] == named


async def test_segments_in_another_order_and_names_that_are_gone_are_named(ledger: SealedLedger) -> None:
    names = await ledger.redis.hgetall("stratos:ledger:segments")
    await ledger.redis.hset("stratos:ledger:segments", mapping={"0": names["1"], "1": names["0"]})
    assert [problem[:9] for problem in (await check(ledger)).problems] == ["segment 0", "segment 1", "segment 2"]
    await ledger.redis.hset("stratos:ledger:segments", mapping=names)
    await ledger.redis.hdel("stratos:ledger:segments", "1")
    assert [problem[:9] for problem in (await check(ledger)).problems] == ["segment 1"]


async def test_a_sum_that_is_not_that_of_its_entries_is_named(ledger: SealedLedger) -> None:
    (field,) = [name for name in await ledger.redis.hkeys(f"stratos:ledger:sums:{ACME}:{DAY}") if "gross" in name]
    await ledger.redis.hincrby(f"stratos:ledger:sums:{ACME}:{DAY}", field, 1)
    assert (await check(ledger)).problems == [f"tenant {ACME}, day {DAY}: its segments do not add up to its sums"]


def test_the_command_names_what_is_missing_and_ends_with_one(redis_url: str, tmp_path: Path) -> None:
    import asyncio

    async def fill() -> None:
        async with open_redis(redis_url) as client:
            made = SealedLedger(client, tmp_path / "objects")
            await made.store.write([entry(1)])
            await made.sealers[0].seal(START_MS + 1)

    asyncio.run(fill())
    command = ["admin", "verify-ledger", "--redis-url", redis_url, "--object-store", f"file://{tmp_path}/objects"]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stdout) == (0, "1 segments with 1 lines, 1 days of tenants compared\n")
    next((tmp_path / "objects/ledger/segments").iterdir()).unlink()
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "error: segment 0: it is missing" in result.stderr
