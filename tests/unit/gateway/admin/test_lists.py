"""Lists of 10,000 keys of 300 tenants: parts of bounded bytes, and a turn of the loop for every few rows."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson
import pytest

from stratos.common.errors import DependencyDown
from stratos.store.keys import KeyRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot, Marker
from stratos.store.records.record import Kind, Record, make_body, parse_record
from stratos.store.records.values import encode_key, encode_tenant
from stratos.store.tenants import TenantRecord
from stratos_gateway.admin.declaration import declared, parse_declaration, stored_beside
from stratos_gateway.admin.lists import StoredLists
from stratos_gateway.admin.views import record_view
from stratos_gateway.http.row_stream import PART_BYTES, PART_ROWS, Rows, encoded, encoded_sections

NUM_TENANTS, NUM_KEYS = 300, 10_000
MOST_BYTES = 512 * 1024
"""Memory beside the snapshot that any list takes."""


@dataclass
class Following:
    snapshot: FollowedSnapshot
    is_following: bool = True

    async def catch_up(self) -> bool:
        return self.is_following


@dataclass
class Uses:
    num_asked: int = 0

    async def last_uses(self, key_ids: Sequence[str]) -> list[int | None]:
        self.num_asked += len(key_ids)
        return [7] * len(key_ids)


def tenant(number: int) -> TenantRecord:
    return TenantRecord(name=f"t{number:03}", cache_salt=number.to_bytes(32, "big"))


def key(number: int, owner: TenantRecord) -> Record:
    record = KeyRecord(
        key_id=f"{number:012x}", name=f"key {number}", tenant=owner.name, tenant_id=owner.id, mac="ab" * 32
    )
    return parse_record(Kind.KEY, record.key_id, f"{number + 1} {make_body(encode_key(record))}")


@pytest.fixture(scope="module")
def snapshot() -> FollowedSnapshot:
    tenants = [tenant(number) for number in range(NUM_TENANTS)]
    records = [parse_record(Kind.TENANT, t.name, f"1 {make_body(encode_tenant(t))}") for t in tenants]
    records += [key(number, tenants[number % NUM_TENANTS]) for number in range(NUM_KEYS)]
    found = FollowedSnapshot()
    found.begin_load(Marker(store_id="s", revision=NUM_KEYS, num_records=len(records)))
    for record in records:
        found.merge(record)
    assert found.end_load(0.0)
    return found


def lists(snapshot: FollowedSnapshot, uses: Uses, **state: bool) -> StoredLists:
    return StoredLists(cast("Any", Following(snapshot, **state)), cast("Any", uses))


@asynccontextmanager
async def counted_turns(turns: list[int]) -> AsyncIterator[None]:
    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def read(rows: Rows) -> tuple[list[dict[str, Any]], int, int]:
    """The rows, and the most bytes and rows of one turn of the loop."""
    turns, parts, most_rows = [0], list[bytes](), 0

    async def told() -> Rows:
        nonlocal most_rows
        turn, num = -1, 0
        async for row in rows:
            num = num + 1 if turns[0] == turn else 1
            turn, most_rows = turns[0], max(most_rows, num)
            yield row

    async with counted_turns(turns):
        parts += [part async for part in encoded(told())]
    return orjson.loads(b"".join(parts))["data"], max(map(len, parts)), most_rows


async def test_all_keys_of_all_tenants_come_in_parts(snapshot: FollowedSnapshot) -> None:
    rows, most_bytes, most_rows = await read(await lists(snapshot, Uses()).keys())
    assert len(rows) == NUM_KEYS
    assert [(row["tenant"], row["key_id"]) for row in rows] == sorted((row["tenant"], row["key_id"]) for row in rows)
    assert most_bytes <= PART_BYTES + 1024
    assert most_rows <= PART_ROWS + 1, "more rows than a part has were made in one turn of the loop"


async def test_a_list_takes_the_memory_of_a_part(snapshot: FollowedSnapshot) -> None:
    found, num_bytes = lists(snapshot, Uses()), 0
    tracemalloc.start()
    try:
        for rows in (await found.keys(), await found.of_kind(Kind.TENANT, record_view)):
            async for part in encoded(rows):
                num_bytes += len(part)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_bytes > 4 * peak_bytes, (num_bytes, peak_bytes)
    assert peak_bytes < MOST_BYTES


async def test_the_declaration_takes_the_memory_of_a_part(snapshot: FollowedSnapshot) -> None:
    found, text, num_parts = declared(await lists(snapshot, Uses()).now()), bytearray(), 0
    async for part in encoded_sections(found):
        text += part
        num_parts += 1
        assert len(part) <= PART_BYTES + 1024
    assert len(orjson.loads(text)["tenants"]) == NUM_TENANTS
    assert num_parts > NUM_TENANTS // PART_ROWS, "entries are written as they are made"


async def test_what_a_declaration_names_is_found_without_a_look_at_the_rest() -> None:
    class OnlyByName(FollowedSnapshot):
        def of_kind(self, kind: Kind) -> list[Record]:
            raise AssertionError(f"all records of {kind} were listed")

    known, closing = OnlyByName(), replace(tenant(2), is_closing=True)
    for one in (tenant(1), closing, tenant(3)):
        known.merge(Record(kind=Kind.TENANT, id=one.name, version=1, value=one, text=""))
    wanted = parse_declaration({"tenants": {tenant(number).name: {} for number in (1, 2, 9)}})
    assert stored_beside(wanted, known).tenants == {tenant(1).name: tenant(1)}


async def test_a_tenants_list_touches_its_own_keys_alone(snapshot: FollowedSnapshot) -> None:
    uses, own = Uses(), tenant(4)
    rows, _, _ = await read(await lists(snapshot, uses).keys_of(own))
    assert {row["tenant"] for row in rows} == {own.name}
    assert len(rows) == uses.num_asked == len(range(4, NUM_KEYS, NUM_TENANTS))
    assert rows[0]["last_use_unix_s"] == 7
    assert "mac" not in rows[0]
    assert (await read(await lists(snapshot, Uses()).keys("t005")))[0][0]["tenant"] == "t005"
    assert (await read(await lists(snapshot, Uses()).keys("none")))[0] == []


async def test_revoked_keys_stay_in_the_list_of_their_tenant() -> None:
    owner, found = tenant(1), FollowedSnapshot()
    found.merge(key(1, owner))
    found.merge(key(2, owner))
    for number, remains in ((1, {"tenant": "t001", "tenant_id": owner.id, "name": "old"}), (3, {"tenant": "t001"})):
        text = f"99 {make_body(remains, is_deleted=True)}"
        found.merge(parse_record(Kind.KEY, f"{number:012x}", text))
    rows, _, _ = await read(await lists(found, Uses()).keys("t001"))
    assert [(row["key_id"][-1], row["revoked"]) for row in rows] == [("1", True), ("2", False), ("3", True)]
    shown, _, _ = await read(await lists(found, Uses()).keys_of(owner))
    assert [row["key_id"][-1] for row in shown] == ["1", "2"], "the third names no id: it may be an earlier tenant's"


async def test_what_cannot_be_followed_is_not_listed(snapshot: FollowedSnapshot) -> None:
    with pytest.raises(DependencyDown):
        await lists(snapshot, Uses(), is_following=False).keys()
