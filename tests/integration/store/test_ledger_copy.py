"""Redis is lost and filled again, from copies and segments: totals are those from before, and the chain is whole."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.cli.money.ledger_copies import fill_ledger
from stratos.cli.stores import StoreTarget
from stratos.common.errors import BadRequest, DependencyDown
from stratos.core.ledger.entry import LedgerEntry, day_of
from stratos.core.ledger.windows import Sample, WindowShare
from stratos.store.keys import parse_key
from stratos.store.ledger.recovery.chain_check import ChainCheck
from stratos.store.ledger.recovery.ledger_copy import LedgerCopy
from stratos.store.ledger.recovery.rebooking import book_again
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.tenancy.deletion import delete_tenant
from tests.support.servers.record_stores import marked_store
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

DAYS = [(tenant, day_of(START_MS)) for tenant in (ACME, BRAVO)]
MONTH = day_of(START_MS)[:7]


@pytest.fixture
async def ledger(redis_url: str, tmp_path: Path) -> AsyncIterator[SealedLedger]:
    """Entries in segments, a correction, and entries in Redis."""
    async with open_redis(redis_url) as client:
        made = SealedLedger(client, tmp_path / "objects")
        await made.store.write([entry(n, (ACME, BRAVO)[n % 2], gross=10 + n, rank=n % 3) for n in range(9)])
        await made.sealers[0].seal(START_MS + 1)
        await made.store.write([entry(n, (ACME, BRAVO)[n % 2], gross=100 + n) for n in range(6)])
        await client.xadd("stratos:audit", {"entry": "one"})
        yield made


async def export(ledger: SealedLedger, path: Path) -> None:
    file = BytesIO()
    await LedgerCopy(ledger.redis, CONFIG, "copy").export(file, "id")
    await asyncio.to_thread(path.write_bytes, file.getvalue())


async def restore(ledger: SealedLedger, path: Path) -> int:
    await LedgerCopy(ledger.redis, CONFIG, "copy").restore(path, "id")
    return await rebook(ledger)


async def rebook(ledger: SealedLedger) -> int:
    return await book_again(ledger.chain, ledger.segments, ledger.store, ledger.sealers[0])


async def totals(ledger: SealedLedger) -> list[Counter[str] | int]:
    sums = [await ledger.sums(*day) for day in DAYS]
    return [*sums, *[await ledger.store.spend(tenant, MONTH) for tenant, _ in DAYS]]


async def contents(ledger: SealedLedger) -> dict[str, object]:
    """All keys, but those that pass."""
    found: dict[str, object] = {}
    for name in sorted(await ledger.redis.keys("*")):
        kind = await ledger.redis.type(name)
        read = {"hash": ledger.redis.hgetall, "set": ledger.redis.smembers}.get(kind)
        found[name] = await read(name) if read else None
    return found


async def verified(ledger: SealedLedger) -> list[str]:
    await ledger.check(DAYS)
    return (await ChainCheck(ledger.chain, ledger.segments, ledger.unsealed, ledger.usage).run()).problems


async def test_a_copy_brings_back_all_that_redis_had(ledger: SealedLedger, tmp_path: Path) -> None:
    before, had = await totals(ledger), await contents(ledger)
    await export(ledger, tmp_path / "copy")
    await ledger.redis.flushall()
    assert await restore(ledger, tmp_path / "copy") == 0
    assert await totals(ledger) == before
    assert await contents(ledger) == had
    assert [fields for _, fields in await ledger.redis.xrange("stratos:audit")] == [{"entry": "one"}]
    assert await verified(ledger) == []
    await ledger.sealers[1].seal(START_MS + 1)
    assert await verified(ledger) == []


async def test_a_day_that_begins_while_a_copy_is_made_comes_with_its_sums(
    ledger: SealedLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: a scan may pass a day's sums before they are made, and find its entries: then none is counted."""
    scan = ledger.redis.scan_iter

    async def passed(*args: Any, **named: Any) -> AsyncIterator[str]:
        async for name in scan(*args, **named):
            if ":ledger:sums:" not in name:
                yield name

    before = await totals(ledger)
    with monkeypatch.context() as scanned:
        scanned.setattr(ledger.redis, "scan_iter", passed)
        await export(ledger, tmp_path / "copy")
    await ledger.redis.flushall()
    await restore(ledger, tmp_path / "copy")
    assert await totals(ledger) == before


async def test_what_was_sealed_after_the_copy_is_booked_again_once(ledger: SealedLedger, tmp_path: Path) -> None:
    await export(ledger, tmp_path / "copy")
    await ledger.store.write([entry(20, gross=7), entry(7, BRAVO, gross=500)])
    await ledger.sealers[0].seal(START_MS + 1)
    await ledger.store.write([entry(21, BRAVO, gross=9), entry(20, gross=7)])
    await ledger.sealers[0].seal(START_MS + 1)
    before = await totals(ledger)
    await ledger.redis.flushall()
    assert await restore(ledger, tmp_path / "copy") == 6 + 2 + 1
    assert await totals(ledger) == before
    assert await verified(ledger) == []
    await ledger.sealers[0].seal(START_MS + 1)
    assert await restore(ledger, tmp_path / "copy") > 0, "again, from segments that were made anew"
    assert await totals(ledger) == before


async def test_without_a_copy_segments_bring_the_sums_back(ledger: SealedLedger) -> None:
    await ledger.sealers[0].seal(START_MS + 1)
    before = await totals(ledger)
    await ledger.redis.flushall()
    await rebook(ledger)
    assert await totals(ledger) == before
    assert await verified(ledger) == []


async def test_the_ledger_of_another_store_gives_way_to_that_of_the_segments(
    ledger: SealedLedger, redis_url: str, tmp_path: Path
) -> None:
    """The defect: its longer chain hid our segments, and its sums stood for ours."""
    await ledger.sealers[0].seal(START_MS + 1)
    before = await totals(ledger)
    await ledger.redis.flushall()
    await marked_store(ledger.redis, tmp_path / "strange")
    strange = SealedLedger(ledger.redis, tmp_path / "strange")
    for number in range(3):
        await strange.store.write([entry(60 + number, gross=1)])
        await strange.sealers[0].seal(START_MS + 1)
    target = StoreTarget(redis_url=redis_url, object_store_url=f"file://{tmp_path}/objects")
    await fill_ledger(target, None, "id", False)
    assert await totals(ledger) == before
    assert await verified(ledger) == []


async def test_a_copy_brings_back_windows_and_when_they_end(ledger: SealedLedger, tmp_path: Path) -> None:
    """What comes later is judged with what was there, and the statement lists what its sums count."""
    late = Sample(bucket=9, is_over=True)
    now_ms = int(time.time()) // 300 * 300_000
    first, second = (
        replace(entry(40 + n, ms=now_ms), window=WindowShare(window_s=300, ttft=late, stake=1000 * (n + 1)))
        for n in range(2)
    )
    await ledger.store.write([first])
    day, ends = first.day, await _ends(ledger)
    assert {name.split(":")[2] for name in ends} >= {"spans", "windows", "missed"}
    await export(ledger, tmp_path / "copy")
    await ledger.redis.flushall()
    await restore(ledger, tmp_path / "copy")
    found = await _ends(ledger)
    assert {name: abs(found.get(name, 0) - until) <= 60 for name, until in ends.items()} == dict.fromkeys(ends, True)
    await ledger.store.write([second])
    sums = await ledger.sums(ACME, day)
    assert (sums["windows"], sums["missed_windows"], sums["window_credit"]) == (1, 1, 30)
    assert [window.num_ttft for window in await ledger.usage.missed_windows(ACME, [day])] == [2]


async def _ends(ledger: SealedLedger) -> dict[str, float]:
    """Keys that end, but histograms, and when."""
    names = [name for name in await ledger.redis.keys("*") if ":histogram:" not in name]
    left = {name: await ledger.redis.ttl(name) for name in names}
    return {name: time.time() + left_s for name, left_s in left.items() if left_s > 0}


async def test_a_tenant_sees_its_audit_log_after_a_loss(ledger: SealedLedger, tmp_path: Path) -> None:
    made = await marked_store(ledger.redis, tmp_path / "objects")
    await made.keys.create_key("acme", "one")
    await made.keys.create_key("bravo", "two")
    tenant = (await made.keys.tenants.get("acme")).id
    before = await made.records.audit_page(tenant=tenant)
    assert before.entries
    await export(ledger, tmp_path / "copy")
    await ledger.redis.flushall()
    await restore(ledger, tmp_path / "copy")
    assert await made.records.audit_page(tenant=tenant) == before


@pytest.mark.parametrize("has_copy", [True, False])
async def test_a_rebooking_that_is_cut_short_anywhere_is_done_again(
    ledger: SealedLedger, tmp_path: Path, has_copy: bool
) -> None:
    """It seals on its way, so what it has not reached yet must be found by the next one."""
    await export(ledger, tmp_path / "copy")
    for number in range(50, 52):
        await ledger.store.write([entry(number, gross=7 + number), entry(number - 50, gross=300 + number)])
        await ledger.sealers[0].seal(START_MS + 1)
    if not has_copy:
        await ledger.sealers[0].seal(START_MS + 1)
    ledger.clock.advance(2 * HOUR_MS / 1000)
    before, head = await totals(ledger), await ledger.segments.head()
    assert head is not None
    num_steps, is_cut = 0, True
    while is_cut:
        await ledger.redis.flushall()
        await ledger.segments.put_head(head)
        try:
            ledger.fuse.left = num_steps
            await (restore(ledger, tmp_path / "copy") if has_copy else rebook(ledger))
            is_cut, ledger.fuse.left = False, None
        except Crash:
            await (restore(ledger, tmp_path / "copy") if has_copy else rebook(ledger))
        assert await totals(ledger) == before, f"cut after {num_steps} steps"
        num_steps += 3  # before a step, and after one
    assert num_steps > 10
    assert await verified(ledger) == []


@pytest.mark.parametrize("change", ["cut", "alter", "other"])
async def test_a_copy_that_is_not_whole_changes_nothing(ledger: SealedLedger, tmp_path: Path, change: str) -> None:
    path, before = tmp_path / "copy", await contents(ledger)
    await export(ledger, path)
    data = path.read_bytes()
    changed = {"cut": data[:-40], "alter": data.replace(b"gen-1", b"gen-2", 1), "other": data}[change]
    path.write_bytes(changed)
    with pytest.raises(BadRequest, match="another store" if change == "other" else "not all of one"):
        await LedgerCopy(ledger.redis, CONFIG, "copy").restore(path, "id-2" if change == "other" else "id")
    assert await contents(ledger) == before


async def test_no_copy_is_made_while_a_gateway_seals(ledger: SealedLedger) -> None:
    assert await ledger.chain.take_lease("g-0", 60)
    with pytest.raises(DependencyDown, match="sealing"):
        await LedgerCopy(ledger.redis, CONFIG, "copy").export(BytesIO(), "id")


async def test_segments_that_do_not_follow_the_copy_are_not_booked(ledger: SealedLedger, tmp_path: Path) -> None:
    await export(ledger, tmp_path / "copy")
    await ledger.redis.flushall()
    await ledger.store.write([entry(1), entry(2)])
    for number in range(3):
        await ledger.store.write([entry(30 + number)])
        await ledger.sealers[0].seal(START_MS + 1)
    with pytest.raises(DependencyDown, match="do not follow"):
        await restore(ledger, tmp_path / "copy")


@pytest.mark.parametrize("is_backup", [False, True])
def test_the_drill_with_the_commands_of_an_operator(redis_url: str, tmp_path: Path, is_backup: bool) -> None:
    """Copy, lose Redis, adopt: totals are equal, the chain is whole, and a deleted tenant is refused as before."""
    at = ["--redis-url", redis_url, "--object-store", f"file://{tmp_path}/objects"]
    keys: list[str] = []
    records, copy = str(tmp_path / "records.jsonl"), str(tmp_path / "ledger.jsonl")
    restore = ["--from-backup", "latest"] if is_backup else ["--from", records, "--ledger", copy]

    async def fill() -> list[Counter[str] | int]:
        async with open_redis(redis_url) as client:
            store = await marked_store(client, tmp_path / "objects")
            keys.append(await store.keys.create_key("gone", "one"))
            await delete_tenant(RecordWriter(store.records, actor="test"), "gone")
            ledger = SealedLedger(client, tmp_path / "objects")
            await ledger.store.write([entry(1), entry(2, BRAVO)])
            await ledger.sealers[0].seal(START_MS + 1)
            await ledger.store.write([entry(3), entry(1, gross=1)])
            return await totals(ledger)

    async def is_refused(key: str) -> bool:
        async with open_redis(redis_url) as client:
            found = await RecordStore(client).records(Kind.KEY)
            return [record.is_deleted for record in found if record.id == parse_key(key)] == [True]

    async def lose() -> None:
        async with open_redis(redis_url) as client:
            await client.flushall()

    async def found() -> list[Counter[str] | int]:
        async with open_redis(redis_url) as client:
            return await totals(SealedLedger(client, tmp_path / "objects"))

    def stratos(*command: str) -> int:
        return CliRunner().invoke(app, ["admin", *command, *at]).exit_code

    before = asyncio.run(fill())
    assert stratos("backup", "--keep", "1") == stratos("export", records, "--ledger", copy) == 0
    assert json.loads(Path(copy).read_text().splitlines()[0])["format"] == 1
    assert Path(copy).stat().st_mode & 0o777 == 0o600
    asyncio.run(lose())
    assert stratos("adopt-store", *restore) == 0
    assert asyncio.run(found()) == before
    assert asyncio.run(is_refused(keys[0]))
    assert stratos("verify-ledger") == 0
    assert stratos("adopt-store", *restore) == 1, "there is a ledger now"
    assert asyncio.run(found()) == before
    asyncio.run(lose())
    next((tmp_path / "objects/ledger/segments").iterdir()).unlink()
    assert stratos("adopt-store", "--from", records) == 1, "a segment is missing, so sums would be too small"
    assert stratos("adopt-store", "--from", records, "--without-ledger") == 0, "tenants and keys do not wait for it"


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_drill_beside_the_platform_needs_a_copy_of_its_objects(
    redis_url: str, tmp_path: Path, is_copied: bool
) -> None:
    """Control: over the platform's own objects it writes a segment of its own, and makes that the ledger's end."""
    objects, drill = tmp_path / "objects", tmp_path / ("drill" if is_copied else "objects")

    def stratos(*command: str, folder: Path, prefix: str) -> int:
        at = ["--redis-url", redis_url, "--object-store", f"file://{folder}", "--prefix", prefix]
        return CliRunner().invoke(app, ["admin", *command, *at]).exit_code

    def written() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (objects / "ledger").rglob("*") if path.is_file()}

    async def write(*entries: LedgerEntry) -> list[Counter[str] | int]:
        """Seal what arrived at the start; later entries stay in Redis."""
        async with open_redis(redis_url) as client:
            await marked_store(client, objects)
            ledger = SealedLedger(client, objects)
            if entries:
                await ledger.store.write(entries)
                await ledger.sealers[0].seal(START_MS + 1)
            return await totals(ledger)

    asyncio.run(write(entry(1), entry(2, BRAVO), entry(7, ms=START_MS + HOUR_MS)))
    assert stratos("backup", folder=objects, prefix="stratos") == 0
    before = asyncio.run(write(entry(3), entry(4, BRAVO)))
    if is_copied:
        shutil.copytree(objects, drill)
    files = written()
    assert stratos("adopt-store", "--from-backup", "latest", folder=drill, prefix="drill") == 0
    assert stratos("verify-ledger", folder=drill, prefix="drill") == 0
    assert (written() == files) == is_copied
    assert asyncio.run(write()) == before, "the platform's Redis is as it was"
