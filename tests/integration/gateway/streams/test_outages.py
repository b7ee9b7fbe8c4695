"""Streams while their store does not answer: those that run go on, and what has no record is the same without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from stratos.common.errors import DependencyDown
from stratos.store.sealed.response_store import ResponseStore
from stratos.store.sealed.stream_store import StreamStore
from tests.integration.gateway.streams.test_files import call
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, code_of, contents, num_submits, read, stream_worlds

PATH = "/v1/completions"
BODY = {"model": "base", "stream": True, "temperature": 1.0, **ASKED[PATH]}
DOWN = DependencyDown("Redis does not answer")


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def test_a_recorded_stream_goes_on_without_its_store_and_is_recorded_afterwards(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a client that comes back is told to wait."""
    one, two = worlds
    expected = contents(await read(two, "POST", PATH, BODY, idempotency_key="undisturbed"))
    one.worker.step_s = 0.02
    num_refused, write = 0, StreamStore.write

    async def refuse(store: StreamStore, *asked: Any) -> Any:
        nonlocal num_refused
        num_refused += 1
        raise DOWN

    async def write_once(store: StreamStore, *asked: Any) -> Any:
        if any(asked):
            away.setattr(StreamStore, "write", refuse)
        return await write(store, *asked)

    with monkeypatch.context() as away:
        away.setattr(StreamStore, "write", write_once)
        running = asyncio.create_task(read(one, "POST", PATH, BODY, idempotency_key="harmed"))
        await eventually(lambda: num_refused, "the store is away")
        found = await running
        assert contents(found) == expected
        before = num_refused
        await eventually(lambda: num_refused > before, "its end cannot be written")
        away.setattr(StreamStore, "open", AsyncMock(side_effect=DOWN))
        at, place = f"/v1/streams/{found.stream}", found.events[2].id
        assert code_of(await read(two, "GET", at, last_event_id=place)) == (503, "dependency_unavailable")
    rest = await read(two, "GET", at, last_event_id=place)
    assert contents(Read(200, found.headers, found.events[:3]), rest) == expected
    assert num_submits(worlds) == 2


async def test_what_could_not_be_recorded_is_computed_again_as_it_was(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a given seed it is that of the tenant and the key, and so is the answer's id."""
    monkeypatch.setattr(StreamStore, "open", AsyncMock(side_effect=DOWN))
    reads = [await read(world, "POST", PATH, BODY, idempotency_key="a key") for world in worlds]
    other = await read(worlds[0], "POST", PATH, BODY, idempotency_key="another")
    assert [found.stream for found in (*reads, other)] == ["none"] * 3
    assert contents(reads[0]) == contents(reads[1])
    ids = [json.loads(found.events[0].data)["id"] for found in (*reads, other)]
    seeds = [submit.seed for world in (worlds[1], worlds[0]) for submit in world.worker.submits]
    assert (seeds[0], ids[0]) == (seeds[1], ids[1])
    assert (seeds[2], ids[2]) != (seeds[0], ids[0])
    assert len(set(seeds)) == len(set(ids)) == 2


async def test_no_event_waits_for_a_store_that_hangs(worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole stream comes while no write of its record is answered; what was written last comes after it."""
    one, two = worlds
    expected = contents(await read(two, "POST", PATH, BODY, idempotency_key="undisturbed"))
    answers, write, num_asked = asyncio.Event(), StreamStore.write, 0

    async def hang(store: StreamStore, *asked: Any) -> Any:
        nonlocal num_asked
        num_asked += any(asked)
        await answers.wait()
        return await write(store, *asked)

    monkeypatch.setattr(StreamStore, "write", hang)
    found = await read(one, "POST", PATH, BODY, idempotency_key="hung")
    assert contents(found) == expected
    assert num_asked
    answers.set()
    rest = await read(two, "GET", f"/v1/streams/{found.stream}", last_event_id=found.events[2].id)
    assert contents(Read(200, found.headers, found.events[:3]), rest) == expected
    assert num_submits(worlds) == 2, "of the undisturbed one and of this one"


async def test_a_response_that_could_not_be_kept_is_kept_once_it_is_asked_for_again(
    worlds: list[AdminWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are recorded, but its record is not whole before it is kept."""
    one, two = worlds
    path = "/v1/responses"
    body = {"model": "base", "store": True, **ASKED[path]}

    async def ask(world: AdminWorld) -> httpx.Response:
        return await call(world, "POST", path, json=body, headers={"idempotency-key": "kept"})

    with monkeypatch.context() as away:
        away.setattr(ResponseStore, "put", AsyncMock(side_effect=DOWN))
        assert (await ask(one)).status_code == 503
    found = await ask(two)
    assert (found.status_code, num_submits(worlds)) == (200, 1)
    more = {**body, "previous_response_id": found.json()["id"]}
    following = await call(two, "POST", path, json=more)
    assert following.status_code == 200, following.text
