"""An idempotency key at routes that answer with one message, at two gateways: one answer, however often it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from stratos.common.errors import DependencyDown, Overloaded
from stratos.store.sealed.stream_store import StreamStore
from tests.integration.gateway.streams.test_files import call, lines
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import stream_worlds

EMBEDDINGS = "/v1/embeddings"
INPUT = {"model": "base", "input": ["to be", "or not"]}


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def ask(world: AdminWorld, path: str, body: Any, key: str = "a key", by: str = "user") -> httpx.Response:
    return await call(world, "POST", path, by=by, json=body, headers={"idempotency-key": key})


def told(answers: Sequence[httpx.Response]) -> list[tuple[int, str | None]]:
    return [(answer.status_code, answer.headers.get("idempotent-replayed")) for answer in answers]


async def test_the_same_request_has_the_same_answer_and_another_one_none(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder
) -> None:
    one, two = worlds
    answers = [await ask(one, EMBEDDINGS, INPUT), await ask(two, EMBEDDINGS, dict(reversed(INPUT.items())))]
    assert told(answers) == [(200, None), (200, "true")]
    assert (answers[0].content, len(embedder.calls)) == (answers[1].content, 1)
    for path, body in (
        (EMBEDDINGS, {**INPUT, "input": ["to be"]}),
        ("/v1/completions", {"model": "base", "prompt": "a"}),
    ):
        other = await ask(two, path, body)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert told([await ask(two, EMBEDDINGS, INPUT, by="stranger")]) == [(200, None)], "another tenant's key is its own"
    assert told([await ask(one, EMBEDDINGS, INPUT, key="x" * 256)]) == [(400, None)]


async def test_who_asks_while_it_is_computed_waits_for_it(worlds: list[AdminWorld], embedder: ScriptedEmbedder) -> None:
    """It failed the first time, with which nothing is kept; a gateway that does not know answers as without a key."""
    one, two = worlds
    embedder.errors, is_asked = [Overloaded("no room")] * 1, asyncio.Event()
    embedder.may_fail = is_asked.is_set
    begun = asyncio.create_task(ask(one, EMBEDDINGS, INPUT))
    await eventually(lambda: embedder.calls, "it is computed")
    follows = asyncio.create_task(ask(two, EMBEDDINGS, INPUT))
    is_asked.set()
    answers = await asyncio.gather(begun, follows)
    assert answers[0].content == answers[1].content
    assert sorted(told(answers), key=str) == [(200, "true"), (200, None)]


async def test_a_refused_request_may_be_asked_again(worlds: list[AdminWorld], embedder: ScriptedEmbedder) -> None:
    one, two = worlds
    wrong = {**INPUT, "dimensions": 7}
    assert (await ask(one, EMBEDDINGS, wrong)).status_code == 400
    embedder.blocks = True
    left = asyncio.create_task(ask(one, EMBEDDINGS, INPUT))
    await eventually(lambda: embedder.calls, "it is computed")
    left.cancel()
    await eventually(lambda: embedder.num_cancelled, "its client has left")
    embedder.blocks = False
    assert told([await ask(two, EMBEDDINGS, INPUT), await ask(one, EMBEDDINGS, INPUT)]) == [(200, None), (200, "true")]


async def test_without_its_store_each_request_is_answered_by_itself(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamStore, "open", AsyncMock(side_effect=DependencyDown("Redis does not answer")))
    answers = [await ask(world, EMBEDDINGS, INPUT) for world in worlds]
    assert told(answers) == [(200, None)] * 2
    assert [answer.headers["x-stratos-stream"] for answer in answers] == ["none"] * 2
    assert len(embedder.calls) == 2


async def test_a_file_that_comes_again_is_there_once(worlds: list[AdminWorld]) -> None:
    one, two = worlds

    async def send(world: AdminWorld, content: bytes, name: str = "in.jsonl") -> httpx.Response:
        form, files = {"purpose": "batch"}, {"file": (name, content)}
        return await call(world, "POST", "/v1/files", data=form, files=files, headers={"idempotency-key": "a file"})

    answers = [await send(one, lines(3)), await send(two, lines(3))]
    assert told(answers) == [(200, None), (200, "true")]
    assert answers[0].json() == answers[1].json()
    others = [await send(two, lines(2)), await send(two, lines(3), "other.jsonl")]
    assert [answer.json()["error"]["code"] for answer in others] == ["idempotency_key_reused"] * 2
    assert [file["id"] for file in (await call(one, "GET", "/v1/files")).json()["data"]] == [answers[0].json()["id"]]
