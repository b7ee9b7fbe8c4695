"""A Redis that is short of memory gets no further records of answers: keys, suspensions and limits need the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import Overloaded
from stratos.store.ledger.memory_share import MemoryShare
from tests.integration.gateway.streams.test_files import call
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, contents, num_submits, read, stream_worlds

PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": "base", "stream": True, **ASKED[PATH]}


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Redis has no room while there is something in it."""
    found: list[bool] = []
    monkeypatch.setattr(MemoryShare, "has_room", lambda share: not found)
    return found


@pytest.fixture
async def worlds(full: list[bool], redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def embed(world: AdminWorld) -> tuple[str, str | None]:
    """Ask with a key; the record of the answer, and whether it was there before."""
    body = {"model": "base", "input": ["to be"]}
    answer = await call(world, "POST", "/v1/embeddings", json=body, headers={"idempotency-key": "a key"})
    assert answer.status_code == 200
    return answer.headers.get("x-stratos-stream", ""), answer.headers.get("idempotent-replayed")


async def test_streams_run_without_a_record_and_those_that_have_one_keep_it(
    worlds: list[AdminWorld], full: list[bool]
) -> None:
    one, two = worlds
    before = await read(one, "POST", PATH, BODY, idempotency_key="before")
    full.append(True)
    again = await read(two, "POST", PATH, BODY, idempotency_key="before")
    assert (again.headers["idempotent-replayed"], contents(again)) == ("true", contents(before))
    rest = await read(two, "GET", f"/v1/streams/{before.stream}", last_event_id=before.events[0].id)
    assert (rest.status, rest.last_id) == (200, before.last_id)
    without = await read(two, "POST", PATH, BODY, idempotency_key="full")
    assert (without.status, without.stream, num_submits(worlds)) == (200, "none", 2)
    assert contents(without) == contents(before)
    full.clear()
    assert (await read(two, "POST", PATH, BODY, idempotency_key="full")).stream.startswith("strm_")


async def test_what_is_nothing_without_its_record_is_to_come_again(worlds: list[AdminWorld], full: list[bool]) -> None:
    full.append(True)
    body = {"model": "base", "background": True, **ASKED["/v1/responses"]}
    refused = await call(worlds[0], "POST", "/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "dependency_unavailable")
    assert "retry-after" in refused.headers


async def test_answers_of_one_message_are_computed_each_time(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder, full: list[bool]
) -> None:
    full.append(True)
    assert [await embed(world) for world in worlds] == [("none", None)] * 2
    assert len(embedder.calls) == 2


async def test_an_answer_for_which_there_is_no_room_any_more_is_not_kept(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder, full: list[bool]
) -> None:
    """Many that began together would else fill Redis; the control is kept."""
    embedder.errors, embedder.may_fail = [Overloaded("no room")], lambda: bool(full)
    asked = asyncio.create_task(embed(worlds[0]))
    await eventually(lambda: embedder.calls, "it is computed")
    full.append(True)
    assert (await asked)[1] is None
    full.clear()
    assert [(await embed(world))[1] for world in worlds] == [None, "true"]
