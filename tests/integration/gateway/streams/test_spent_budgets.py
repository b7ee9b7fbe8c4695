"""A budget that is spent while an answer is lost on its way: what was taken in before comes, new requests do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway.streams.test_files import call
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.stream_world import ASKED, Read, code_of, contents, num_submits, read, stream_worlds

PATH, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
BODY: dict[str, Any] = {"model": "base", "stream": True, "seed": 5, **ASKED[PATH]}
INPUT = {"model": "base", "input": ["to be"]}
SPENT = 429, "insufficient_quota"
TERMS = {"prices": {"default": {"prompt": 10**9, "output": 10**9}}, "budget": {"hard": 1}}


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, lease_s=600.0) as found:
        yield found


async def spend(worlds: list[AdminWorld]) -> None:
    """Let the tenant have a budget that its next request spends."""
    changed = {"plan": "premium", "overrides": TERMS}
    assert (await worlds[0].call("PUT", "/tenants/acme", changed)).status_code == 200

    async def is_spent() -> bool:
        return {(await read(world, "POST", PATH, BODY)).status for world in worlds} == {429}

    await eventually(is_spent, "the budget is spent at both gateways")


async def test_an_answer_that_was_begun_goes_on_and_comes_again(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder
) -> None:
    one, two = worlds
    expected = contents(await read(one, "POST", PATH, BODY, idempotency_key="undisturbed"))
    vectors = await call(one, "POST", EMBEDDINGS, json=INPUT, headers={"idempotency-key": "vectors"})
    one.worker.step_s = 0.02
    begun = await read(one, "POST", PATH, BODY, most=3, idempotency_key="cut")
    await spend(worlds)
    rest = await read(two, "GET", f"/v1/streams/{begun.stream}", last_event_id=begun.last_id)
    assert rest.status == 200, rest.events
    assert contents(begun, rest) == expected
    before = num_submits(worlds)
    again = await read(two, "POST", PATH, BODY, idempotency_key="cut")
    assert (again.status, contents(again)) == (200, expected)
    same = await call(two, "POST", EMBEDDINGS, json=INPUT, headers={"idempotency-key": "vectors"})
    assert (same.status_code, same.content) == (200, vectors.content)
    assert num_submits(worlds) == before


async def test_a_new_key_and_another_body_compute_nothing(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    assert (await read(one, "POST", PATH, BODY, idempotency_key="known")).status == 200
    await spend(worlds)
    before = num_submits(worlds)
    refused: list[Read] = [await read(two, "POST", PATH, BODY, idempotency_key="new") for _ in range(2)]
    assert [code_of(found) for found in refused] == [SPENT] * 2
    other = await read(two, "POST", PATH, {**BODY, "seed": 6}, idempotency_key="known")
    assert code_of(other) == (422, "idempotency_key_reused")
    assert num_submits(worlds) == before
