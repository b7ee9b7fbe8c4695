"""The writer of the ledger over a store that comes and goes: what an outage costs, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry, RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.requests.records import RequestKey
from stratos.core.tenancy.plan import STANDARD, Plan
from stratos.store.ledger.ledger_store import Written
from stratos.store.ledger.spool import Spool, SpoolSlice
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record, make_body
from stratos.store.records.record_store import RecordStore, read_record
from stratos.store.records.settings import SnapshotConfig
from stratos.store.records.snapshot_copy import SnapshotCopy
from stratos.store.records.values import encode_tenant
from stratos.store.tenants import TenantRecord
from stratos_gateway.access.departed_tenants import DepartedTenants, plan_of
from stratos_gateway.answering.draft import Draft
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.settings import LedgerConfig
from stratos_gateway.ledger.writer import LedgerWriter, Told
from stratos_gateway.metrics import GatewayMetrics
from tests.support.waiting import LIMIT_S
from tests.support.worlds.usage_counts import COUNT, ENTRY, TAG


@dataclass
class Store:
    """Takes entries, fails ``num_left`` entries from now on where that is set."""

    is_away: bool = False
    is_slow: bool = False
    num_left: int | None = None
    ids: list[str] = field(default_factory=list)
    asked: int = 0
    late: set[str] = field(default_factory=set)
    """Entries that may be in a segment which cannot be read."""
    num_looks: int = 0
    server: str = ""

    async def write(self, entries: Sequence[LedgerEntry], *, looks: bool = True) -> list[Written]:
        self.asked += len(entries)
        if self.is_away:
            raise DependencyDown("away")
        if self.is_slow:
            await asyncio.Event().wait()
        written = []
        for entry in entries:
            if self.num_left == 0:
                raise DependencyDown("away")
            if entry.request_id in self.late:
                self.num_looks += looks
                written.append(Written(False, entry.tenant, 0, "the object store is away"))
                continue
            self.num_left = None if self.num_left is None else self.num_left - 1
            self.ids.append(entry.request_id)
            written.append(Written(True, entry.tenant, 0))
        return written


class CountingSpool(Spool):
    """Counts the lines that were read."""

    num_read = 0

    def read(self, offset: int, max_lines: int) -> SpoolSlice:
        found = super().read(offset, max_lines)
        self.num_read += len(found.entries) + found.num_unreadable
        return found


TENANT = TenantRecord(name="acme", cache_salt=b"0123456789abcdef")
DRAFT = Draft(
    request_id="emb-1", tenant="acme", plan=STANDARD, tag=TAG, outcome=RequestOutcome.FINISHED,
    counts=TokenCounts(num_prompt=3), times=Times(),
)  # fmt: skip


@dataclass
class Bench:
    writer: LedgerWriter
    meter: Meter
    store: Store
    spool: CountingSpool
    registry: CollectorRegistry
    told: list[tuple[bool, str, int]]
    """Whether a request had ended here, its id, and the number of entries that the store had then."""

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


def bench(
    path: Path,
    store: Store | None = None,
    plan_of: Callable[[str], Plan | None] = lambda tenant: None,
    *,
    has_spool: bool = True,
    settle_s: float = 0.1,
) -> Bench:
    registry, store, spool = CollectorRegistry(), store or Store(), CountingSpool(path, 1 << 24)
    meter, told = Meter(FakeClock(), 1.0), list[tuple[bool, str, int]]()

    async def before(has_ended: bool, entries: Sequence[LedgerEntry]) -> None:
        told.extend((has_ended, entry.request_id, len(store.ids)) for entry in entries)

    writer = LedgerWriter(
        store, meter, spool if has_spool else None, LedgerConfig(settle_s=settle_s), plan_of, GatewayMetrics(registry),
        Told(due=lambda tenant, month, due: None, before=before),
    )  # fmt: skip
    return Bench(writer, meter, store, spool, registry, told)


def numbered(num: int) -> list[LedgerEntry]:
    return [replace(ENTRY, request_id=f"gen-{number}") for number in range(num)]


async def test_who_waits_for_entries_goes_on_once_the_ledger_has_them(tmp_path: Path) -> None:
    made = bench(tmp_path / "spool", Store(is_away=True), has_spool=False)
    await made.writer.caught_up()
    made.meter.end(DRAFT)
    waiting = asyncio.ensure_future(made.writer.caught_up())
    await made.writer.turn()
    await asyncio.sleep(0)
    assert not waiting.done(), "the ledger did not take it"
    made.store.is_away = False
    await made.writer.turn()
    await asyncio.wait_for(waiting, LIMIT_S)
    assert made.store.ids == ["emb-1"]


async def test_an_outage_costs_a_turn_one_try_and_no_reading_of_the_spool(tmp_path: Path) -> None:
    made = bench(tmp_path / "spool", Store(is_away=True))
    made.spool.append(numbered(5000))
    for _ in range(40):
        await made.writer.turn()
    assert made.spool.num_read <= 256, "one slice, once"
    assert made.store.asked <= 256 + 40
    made.store.is_away = False
    while made.spool.num_bytes:
        await made.writer.turn()
    assert sorted(set(made.store.ids)) == sorted(f"gen-{number}" for number in range(5000))
    assert made.spool.num_read == 5000
    assert made.metric("stratos_ledger_spool_bytes") == 0


async def test_an_outage_in_the_midst_of_the_spool_goes_on_where_it_was(tmp_path: Path) -> None:
    made = bench(tmp_path / "spool", Store(num_left=700))
    made.spool.append(numbered(2000))
    await made.writer.turn()
    assert made.spool.num_read == 3 * 256
    waiting = made.metric("stratos_ledger_spool_bytes")
    assert waiting is not None
    made.store.num_left = None
    while made.spool.num_bytes:
        await made.writer.turn()
    assert made.spool.num_read == 2000, "no line is read twice"
    assert set(made.store.ids) == {f"gen-{number}" for number in range(2000)}


@pytest.mark.parametrize("has_spool", [True, False])
async def test_an_entry_whose_segment_cannot_be_read_holds_up_no_other(tmp_path: Path, has_spool: bool) -> None:
    made = bench(tmp_path / "spool", Store(late={"gen-0", "gen-1000"}), lambda tenant: STANDARD, has_spool=has_spool)
    made.store.is_away = has_spool
    for number in range(1000):  # the spool has those of an outage, the meter what came since
        made.meter.end(replace(DRAFT, request_id=f"gen-{number}"))
    await made.writer.turn()
    made.store.is_away = False
    for number in range(1000, 2000):
        made.meter.end(replace(DRAFT, request_id=f"gen-{number}"))
    session = Session()
    made.meter.on_counts(session, [replace(COUNT, key=RequestKey(f"gen-{n}", 0)) for n in (3000, 1000, 3001)])
    for _ in range(5):
        await made.writer.turn()
    written = {f"gen-{number}" for number in range(2000)} - made.store.late
    assert set(made.store.ids) - {"gen-3000", "gen-3001"} == written
    assert made.store.num_looks <= 2, "each look may take seconds"
    for _ in range(40):
        await made.writer.turn()
    assert set(session.acknowledged) == {"gen-3000", "gen-3001"}
    assert made.metric("stratos_ledger_pending") == 2
    made.store.late = set()
    for _ in range(40):
        await made.writer.turn()
    assert set(made.store.ids) >= written | {"gen-0", "gen-1000"}
    assert (made.metric("stratos_ledger_pending"), made.spool.num_bytes) == (0, 0)
    assert "gen-1000" in session.acknowledged


async def test_an_entry_that_was_settled_before_its_answer_is_not_written_again(tmp_path: Path) -> None:
    made = bench(tmp_path / "spool")
    await made.writer.settle([DRAFT])
    assert made.store.ids == ["emb-1"]
    made.meter.end(DRAFT)
    await made.writer.turn()
    assert made.store.ids == ["emb-1"]
    made.store.is_away = True
    later = replace(DRAFT, request_id="emb-2")
    await made.writer.settle([later])
    made.meter.end(later)
    await made.writer.turn()
    assert made.spool.num_bytes, "away: it is kept as all others are"
    asked = made.store.asked
    await made.writer.settle([later])
    assert made.store.asked == asked, "no answer waits for a ledger that is known to be away"


@pytest.mark.parametrize("how", ["slow", "away"])
async def test_what_the_ledger_did_not_take_in_time_is_on_disk_before_its_answer(tmp_path: Path, how: str) -> None:
    """The defect: vectors were sent, and their gateway died before its next turn; no worker has a count of them."""
    path, drafts = tmp_path / "spool", [replace(DRAFT, request_id=f"emb-{number}") for number in range(9)]
    made = bench(path, Store(is_slow=how == "slow", is_away=how == "away"), settle_s=5.0 if how == "away" else 0.05)
    await asyncio.gather(*(made.writer.settle([draft]) for draft in drafts))
    assert sorted(entry.request_id for entry in made.spool.read(0, 99).entries) == [d.request_id for d in drafts]
    for draft in drafts:
        made.meter.end(draft)
    assert made.meter.take_ready() == [], "no turn writes it once more"
    made.spool.close()  # it is killed
    after = bench(path)
    await after.writer.turn()
    assert sorted(after.store.ids) == [draft.request_id for draft in drafts]


async def test_what_a_disk_does_not_take_either_is_left_to_the_turns(tmp_path: Path) -> None:
    made = bench(tmp_path / "spool", Store(is_away=True))
    made.spool.close()
    await made.writer.settle([DRAFT])
    made.meter.end(DRAFT)
    made.store.is_away = False
    await made.writer.turn()
    assert made.store.ids == ["emb-1"]


async def test_a_redis_in_the_place_of_another_one_gets_the_last_entries_again(tmp_path: Path) -> None:
    """The defect: what a master took and its replica did not get was billed nowhere, and workers had forgotten it."""
    made = bench(tmp_path / "spool")
    made.spool.append(numbered(3))
    await made.writer.settle([DRAFT])
    await made.writer.turn()
    written, made.store.server = made.store.ids.copy(), "first"
    await made.writer.turn()
    assert made.store.ids == written, "it is the one that took them"
    made.store.server, made.store.is_away = "second", True
    await made.writer.turn()
    made.store.is_away = False
    for _ in range(2):
        await made.writer.turn()
        assert made.store.ids == written * 2, "once"


async def test_what_is_written_is_told_before_and_what_did_not_end_here_apart(tmp_path: Path) -> None:
    """Receipts are written then: a gateway that dies in between leaves none of its entries without one."""
    made = bench(tmp_path / "spool", plan_of=lambda tenant: STANDARD)
    made.spool.append(numbered(1))  # of a gateway that died
    await made.writer.settle([DRAFT])
    made.meter.end(replace(DRAFT, request_id="gen-7"))
    made.meter.on_counts(Session(), [replace(COUNT, key=RequestKey("gen-8", 0))])
    await made.writer.turn()
    assert made.told == [(False, "emb-1", 0), (True, "gen-7", 1), (False, "gen-8", 2), (False, "gen-0", 3)]
    assert made.store.ids == [name for _, name, _ in made.told]


async def test_what_a_disk_spoiled_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    spool = Spool(path, 1 << 20)
    spool.append(numbered(3))
    spool.close()
    path.write_bytes(path.read_bytes().replace(b'"gen-1"', b'\x00gen-1"') + b'{"id":"torn')
    made = bench(path)
    await made.writer.turn()
    assert made.store.ids == ["gen-0", "gen-2"]
    assert made.metric("stratos_ledger_dropped_total") == 2
    assert made.spool.num_bytes == 0


class Session:
    """A session that tells a count once, and hears what the ledger has."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []

    def acknowledge_usage(self, request_ids: Sequence[str]) -> None:
        self.acknowledged += request_ids


async def test_counts_of_a_dead_gateway_wait_until_it_is_known_whose_they_are(tmp_path: Path) -> None:
    """A gateway that starts while Redis is away has sessions, by its health probe, before it knows any tenant."""
    snapshot, session = FollowedSnapshot(), Session()
    follower = SnapshotFollower(snapshot, cast("RecordStore", None), FakeClock(), SnapshotConfig())
    departed = DepartedTenants(snapshot, (), 0.0)
    made = bench(tmp_path / "spool", plan_of=partial(plan_of, follower, departed))
    made.meter.on_counts(session, [replace(COUNT, tenant=TENANT.id)])
    await made.writer.turn()
    assert (made.store.ids, session.acknowledged) == ([], [])
    text = f"1 {make_body(encode_tenant(TENANT))}"
    content = read_record(Kind.TENANT, TENANT.name, text)
    assert isinstance(content, Record)
    follower.restore(SnapshotCopy(store_id="store", revision=1, confirmed_unix_s=0.0, records=[content]), 0.0)
    await made.writer.turn()
    assert (made.store.ids, session.acknowledged) == (["gen-1"], ["gen-1"])
    made.meter.on_counts(session, [replace(COUNT, tenant="tn_unknown")])
    await made.writer.turn()
    assert made.store.ids == ["gen-1"], "there is no such tenant"
