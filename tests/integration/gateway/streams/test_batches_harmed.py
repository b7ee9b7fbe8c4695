"""Batches whose stores lose answers or results: nothing is counted twice, and nothing is missing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.local_store import LocalStore
from stratos.store.redis import open_redis
from stratos.store.sealed.batch_store import BatchStore
from stratos_gateway.files.lines import SLICE_LINES
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.batch_calls import (
    BATCHES,
    QUICK,
    call,
    ended,
    is_billed,
    lines,
    rows_of,
    shown,
    submit,
)
from tests.support.worlds.stream_world import stream_worlds


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, batches=QUICK) as found:
        yield found


@pytest.fixture
async def patient(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    """Where no gateway dies a slice stays with the one that took it, however slow the machine is."""
    async with stream_worlds(redis_url, tmp_path, batches=QUICK | {"lease_s": 600.0}) as found:
        yield found


async def test_an_answer_of_the_store_that_is_lost_takes_no_result_away(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice counted: who tries again must not take it for another gateway's."""
    lost, again = set[Any](), list[bool]()

    def lossy(method: Any) -> Any:
        async def called(store: BatchStore, tenant_id: str, batch_id: str, claim: tuple[int, int], *more: Any) -> bool:
            is_ours: bool = await method(store, tenant_id, batch_id, claim, *more)
            if (method, claim) not in lost:
                lost.add((method, claim))
                raise DependencyDown("the answer was lost")
            again.append(is_ours)
            return is_ours

        return called

    monkeypatch.setattr(BatchStore, "commit", lossy(BatchStore.commit))
    found = await ended(
        worlds[0], (await submit(worlds[1], lines(2 * SLICE_LINES, "/v1/completions", max_tokens=1)))["id"]
    )
    assert (found["status"], found["request_counts"]["completed"]) == ("completed", 2 * SLICE_LINES)
    await eventually(lambda: len(again) == 2, "both were tried again")
    assert again == [True, True], "else what counts is deleted"


@pytest.mark.parametrize(
    ("num", "status"), [(SLICE_LINES + 3, "failed"), (SLICE_LINES + 3, "cancelled"), (SLICE_LINES, "completed")]
)
@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "expired"])
async def test_an_input_that_goes_takes_no_answer_away(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num: int, status: str, *, is_deleted: bool
) -> None:
    """Its first slice is computed by then. What is not computed has no name any more, and says why."""
    claims, may_go_on, claim = list[Any](), asyncio.Event(), BatchStore.claim

    async def once(store: BatchStore, *asked: Any) -> Any:
        found = await claim(store, *asked) if not claims or may_go_on.is_set() else None
        claims.extend([found] if found else [])
        return found

    monkeypatch.setattr(BatchStore, "claim", once)
    async with stream_worlds(redis_url, tmp_path, num=1, batches=QUICK, files={"sweep_s": 0.02}) as [world]:
        begun = await submit(world, lines(num, "/v1/chat/completions", max_tokens=1))

        async def is_answered() -> bool:
            return bool((await shown(world, begun["id"]))["request_counts"]["completed"] == SLICE_LINES)

        await eventually(is_answered, "the first slice counts")
        if status == "cancelled":
            await call(world, "POST", f"{BATCHES}/{begun['id']}/cancel")
        if is_deleted:
            await call(world, "DELETE", f"/v1/files/{begun['input_file_id']}")
        else:
            await end_now(redis_url, begun["input_file_id"])
        await eventually(lambda: not list(tmp_path.rglob(begun["input_file_id"])), "its bytes are deleted")
        may_go_on.set()
        found = await ended(world, begun["id"])
        assert (found["status"], bool(found["errors"])) == (status, status == "failed")
        assert found["request_counts"] == {"total": num, "completed": SLICE_LINES, "failed": 0}
        answers, errors = [await rows_of(world, found[name]) for name in ("output_file_id", "error_file_id")]
        assert [row["custom_id"] for row in answers] == [f"c{number}" for number in range(SLICE_LINES)]
        names = [f"batch_req_{begun['id'].removeprefix('batch_')}-{number}" for number in range(num)]
        assert [row["id"] for row in answers + errors] == names
        assert {(row["custom_id"], row["error"]["code"]) for row in errors} <= {(None, f"batch_{status}")}
        if status == "failed":
            assert "input file was deleted or altered, or its time is over" in errors[0]["error"]["message"]
        await eventually(partial(is_billed, world, SLICE_LINES), "what was computed is billed")


async def end_now(redis_url: str, file_id: str) -> None:
    """Let the time of a file, and that of its bytes, be over."""
    async with open_redis(redis_url) as redis:
        [place] = [name for name in await redis.zrange("stratos:files:objects", 0, -1) if name.endswith(file_id)]
        await redis.zadd(f"stratos:files:{place.split('/')[1]}:until", {file_id: 0}, xx=True)
        await redis.zadd("stratos:files:objects", {place: 0}, xx=True)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "altered"])
async def test_a_result_that_is_lost_is_computed_again(
    patient: list[AdminWorld], monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    """Of two slices the first one: its lines are counted once, billed once, and the other one is not asked again."""
    broken = set[int]()

    async def put(store: LocalStore, name: str, data: Any) -> None:
        await whole(store, name, data)
        if name.endswith("-0-1"):  # kept, and not counted yet: nothing has read it
            broken.add(0)
            await (store.delete(name) if is_gone else whole(store, name, b"not what was sealed"))

    whole = LocalStore.put
    monkeypatch.setattr(LocalStore, "put", put)
    num = 2 * SLICE_LINES
    rows = lines(num, "/v1/chat/completions", max_tokens=2)
    found = await ended(patient[0], (await submit(patient[1], rows))["id"])
    assert broken == {0}
    assert (found["status"], found["request_counts"]) == ("completed", {"total": num, "completed": num, "failed": 0})
    answers = await rows_of(patient[0], found["output_file_id"])
    assert [row["custom_id"] for row in answers] == [row["custom_id"] for row in rows]
    submits = [submit for world in patient for submit in world.worker.submits]
    asked = Counter(submit.request_id for submit in submits)
    assert sorted(Counter(asked.values()).items()) == [(1, SLICE_LINES), (2, SLICE_LINES)]
    arrivals = {(submit.request_id, submit.meter.arrived_unix_ms) for submit in submits}
    assert len(arrivals) == num, "else a line that is computed on two days is billed on both"
    await eventually(partial(is_billed, patient[0], num), "every line is billed once")


async def test_a_result_that_is_lost_after_the_end_of_its_batch_counts_for_nothing(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed for one that was cancelled: its line is named as not executed, and its count says so."""
    one, two = worlds
    one.worker.hang_after = two.worker.hang_after = 3

    async def read_result(*asked: Any) -> bytes:
        raise NotFound("gone")

    monkeypatch.setattr(BatchStore, "read_result", read_result)
    rows = lines(2, "/v1/chat/completions")
    rows[0]["body"] = {**rows[0]["body"], "max_tokens": 2}
    begun = await submit(one, rows)
    await eventually(lambda: len(one.worker.submits) + len(two.worker.submits) == 2, "both run")
    await call(two, "POST", f"{BATCHES}/{begun['id']}/cancel")
    found = await ended(one, begun["id"])
    assert (found["status"], found["output_file_id"]) == ("cancelled", None)
    assert found["request_counts"] == {"total": 2, "completed": 0, "failed": 0}
    errors = await rows_of(one, found["error_file_id"])
    assert [(row["custom_id"], row["error"]["code"]) for row in errors] == [
        ("c0", "batch_cancelled"),
        ("c1", "batch_cancelled"),
    ]


async def test_a_store_that_loses_all_results_fails_the_batch(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of computing it for ever."""

    async def read_result(*asked: Any) -> bytes:
        raise NotFound("gone")

    monkeypatch.setattr(BatchStore, "read_result", read_result)
    found = await ended(worlds[0], (await submit(worlds[1], lines(1, "/v1/completions", max_tokens=1)))["id"])
    assert (found["status"], found["request_counts"]["total"]) == ("failed", 1)
    assert "lost" in found["errors"]["data"][0]["message"]


@pytest.mark.parametrize("when", ["commit", "read_result"], ids=["of results", "of files"])
async def test_a_batch_outlives_an_object_store_that_is_away(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """For 2 s, from the first result that is written, or the first that is read: the work is done again."""
    begun, refused = list[float](), list[str]()

    def begins(method: Any) -> Any:
        async def called(*asked: Any) -> Any:
            begun.append(time.monotonic())
            return await method(*asked)

        return called

    def away(method: Any) -> Any:
        async def called(store: LocalStore, key: str, *more: Any) -> Any:
            if begun and time.monotonic() < begun[0] + 2.0:
                refused.append(key)
                raise DependencyDown("the object store does not answer")
            return await method(store, key, *more)

        return called

    monkeypatch.setattr(BatchStore, when, begins(getattr(BatchStore, when)))
    for name in ("put", "read", "delete", "fetch"):
        monkeypatch.setattr(LocalStore, name, away(getattr(LocalStore, name)))
    num = SLICE_LINES + 1
    rows = lines(num, "/v1/chat/completions", max_tokens=2)
    found = await ended(worlds[0], (await submit(worlds[1], rows))["id"])
    assert refused
    assert (found["status"], found["request_counts"]) == ("completed", {"total": num, "completed": num, "failed": 0})
    answers = await rows_of(worlds[0], found["output_file_id"])
    assert [row["custom_id"] for row in answers] == [row["custom_id"] for row in rows]
    await eventually(partial(is_billed, worlds[0], num), "every line is billed once")
