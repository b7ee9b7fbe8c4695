"""Requests that wait for a revision whose last worker has left: the newer one answers them, billed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stratos.core.placement import WorkerRole
from stratos.store.local_store import LocalStore
from tests.integration.gateway.models.test_added_models import Added, _shows, added_worlds, body_of
from tests.support.paths import MODELS
from tests.support.reference.second_model import save_second_model
from tests.support.waiting import eventually
from tests.support.worlds.stream_world import read, stream_worlds, texts

DECODE = {WorkerRole.DECODE: 1}


@pytest.fixture
async def added(redis_url: str, tmp_path: Path) -> AsyncIterator[Added]:
    """Two revisions of one name, of which the old one has the name and no worker any more."""
    async with AsyncExitStack() as stack:
        made = await added_worlds(stack, redis_url, tmp_path)
        old, new = made.bodies
        made.one.router.holds, made.one.router.live = True, {old["digest"]: DECODE}
        assert (await made.one.call("POST", "/models", old)).is_success
        assert (await made.one.call("POST", "/models", new)).is_success
        await eventually(lambda: _is_current(made, old), "both are served, and the old one has the name")
        yield made


async def _is_current(added: Added, body: dict[str, Any]) -> bool:
    rows = await added.rows(added.one)
    states = [rows.get(other["digest"], {}).get("state") for other in added.bodies]
    return states == ["serving"] * 2 and rows[body["digest"]]["current"]


async def _waits(added: Added, model: str, num: int = 1, **more: Any) -> asyncio.Task[Any]:
    """A request that a router holds, since no worker has the old revision any more."""
    one = added.one
    one.router.live = {}
    asked = asyncio.create_task(added.ask(one, model, **more))
    await eventually(lambda: len(one.router.requests) == num, "it waits")
    assert one.router.requests[-1].model_digest == added.bodies[0]["digest"]
    return asked


async def _got(added: Added, path: str) -> Any:
    headers = {"authorization": f"Bearer {added.one.keys['user']}"}
    return (await added.one.public.get(path, headers=headers)).json()


async def _billed(added: Added, answer: Any, num: int) -> dict[str, Any]:
    """Receipt of an answer, once so many entries of it are in the ledger."""
    url = f"/v1/requests/{answer.headers['x-request-id']}/receipt"

    async def is_there() -> bool:
        return len((await _got(added, url)).get("billed", ())) == num

    await eventually(is_there, "it is in the ledger")
    return await _got(added, url)


ASKS = [{}, {"stream": True}, {"n": 2}, {"prompt": [[5], [6]]}, {"models": ["small", "base"]}]


async def test_the_newer_revision_answers_what_waits_for_one_without_workers(added: Added) -> None:
    one, [old, new], num_billed = added.one, added.bodies, 0
    for more in ASKS:
        one.router.live = {old["digest"]: DECODE}
        await eventually(lambda: _is_current(added, old), "the name is the old one's")
        one.router.requests.clear()
        one.worker.submits.clear()
        num = 2 if "prompt" in more else 1
        asked = await _waits(added, "small", num, **more)
        one.router.live = {new["digest"]: DECODE}
        answer = await asked
        assert answer.status_code == 200, answer.text
        assert "error" not in answer.text
        assert [submit.model_digest for submit in one.worker.submits] == [new["digest"]] * num
        assert (await _billed(added, answer, num))["superseded"] == [old["digest"]]
        num_billed += num
    total = (await _got(added, "/v1/usage"))["total"]
    assert (total["requests"], total["output_tokens"]) == (num_billed, 3 * (num_billed + 1))
    name = "stratos_prompt_tokens_total"
    found = [
        s.value for f in one.service.metrics.restricted_registry([name]).collect() for s in f.samples if s.name == name
    ]
    assert sum(found) == 2 * len(ASKS), "what ran nowhere is no request that ended"


async def test_a_record_of_what_moves_is_made_again_for_the_newer_revision(redis_url: str, tmp_path: Path) -> None:
    records = {"live_poll_s": 0.01}
    async with stream_worlds(redis_url, tmp_path, keepalive_s=0.0, model_records=records) as [one, _]:
        store = LocalStore(tmp_path / "blobs")
        old, new = [await body_of(store, f) for f in (MODELS / "draft", save_second_model(tmp_path / "second"))]
        one.router.holds, one.router.live = True, {old["digest"]: DECODE}
        for body in (old, new):
            assert (await one.call("POST", "/models", body)).is_success
            await eventually(lambda: _shows(one, old["digest"]), "the old one has the name")
        one.router.live = {}
        ask = {"model": "small", "prompt": [5, 6], "max_tokens": 3, "stream": True}
        asked = asyncio.create_task(read(one, "POST", "/v1/completions", ask, idempotency_key="moves"))
        await eventually(lambda: one.router.requests, "it waits")
        one.router.live = {new["digest"]: DECODE}

        first = await asked
        again = await read(one, "POST", "/v1/completions", ask, idempotency_key="moves")
        assert (first.status, again.status) == (200, 200)
        assert texts(first) == texts(again)
        assert [submit.model_digest for submit in one.worker.submits] == [new["digest"]]


async def test_what_was_handed_back_before_its_first_token_moves_and_costs_once(added: Added) -> None:
    one, [old, new] = added.one, added.bodies
    one.worker.drain_after = 0
    asked = asyncio.create_task(added.ask(one, "small"))
    await eventually(lambda: len(one.router.requests) == 2, "it was handed back, and waits")
    one.router.live, one.worker.drain_after = {new["digest"]: DECODE}, None
    answer = await asked
    assert answer.status_code == 200, answer.text
    assert [submit.model_digest for submit in one.worker.submits] == [old["digest"], new["digest"]]
    await _billed(added, answer, 1)
    assert (await _got(added, "/v1/usage"))["total"]["output_tokens"] == 3


async def test_a_pinned_revision_is_waited_for(added: Added) -> None:
    one, [old, new] = added.one, added.bodies
    asked = await _waits(added, f"small@{old['digest'][:12]}")
    one.router.live = {new["digest"]: DECODE}
    await eventually(lambda: _is_current(added, new), "the name has moved")
    one.router.live = {new["digest"]: DECODE, old["digest"]: DECODE}
    answer = await asked
    assert answer.status_code == 200, answer.text
    assert [submit.model_digest for submit in one.worker.submits] == [old["digest"]]


async def test_what_has_begun_waits_for_its_own_revision(added: Added) -> None:
    one, [old, new] = added.one, added.bodies
    one.worker.drain_after = 1
    asked = asyncio.create_task(added.ask(one, "small"))
    await eventually(lambda: len(one.router.requests) == 2, "it was handed back with a token, and waits")
    one.router.live = {new["digest"]: DECODE}
    await eventually(lambda: _is_current(added, new), "the name has moved")
    digests = [request.model_digest for request in one.router.requests]
    assert (digests.count(old["digest"]), digests.count(new["digest"])) == (2, 0)
    assert not asked.done()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
