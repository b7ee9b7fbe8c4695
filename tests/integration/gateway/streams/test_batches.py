"""Batches at two gateways: computed by both, finished once, ended early, billed at half, refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stratos.common.errors import Overloaded
from stratos.core.files.model_files import read_model_files
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.batch_store import BatchHead, BatchStore
from stratos_gateway.files.lines import SLICE_LINES
from tests.support.fakes.scripted_embedder import ScriptedEmbedder
from tests.support.reference.second_model import save_second_model
from tests.support.reference.shipped_model import base_digest
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.batch_calls import (
    ASKED,
    BATCHES,
    QUICK,
    call,
    ended,
    is_billed,
    lines,
    rows_of,
    submit,
    upload,
)
from tests.support.worlds.stream_world import TEXT, stream_worlds

IGNORED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"store": True},
    "/v1/completions": {"store": True},
    "/v1/responses": {"client_metadata": {"a": "b"}},
    "/v1/messages": {"diagnostics": {"a": "b"}},
}
"""A field of each route that is accepted and means nothing here."""


@pytest.fixture
async def worlds(redis_url: str, tmp_path: Path) -> AsyncIterator[list[AdminWorld]]:
    async with stream_worlds(redis_url, tmp_path, batches=QUICK) as found:
        yield found


@pytest.mark.parametrize("url", [url for url in ASKED if url != "/v1/moderations"])
async def test_every_route_is_computed_in_the_order_of_its_lines(worlds: list[AdminWorld], url: str) -> None:
    one, two = worlds
    rows = lines(3, url)
    rows[1]["body"] = {**rows[1]["body"], **IGNORED[url]}
    begun = await submit(one, rows, metadata={"job": "nightly"})
    assert begun["status"] in ("validating", "in_progress")  # a gateway may have begun already
    assert begun["metadata"] == {"job": "nightly"}
    found = await ended(two, begun["id"])
    assert (found["status"], found["error_file_id"]) == ("completed", None)
    assert found["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    answers = await rows_of(two, found["output_file_id"])
    assert [row["custom_id"] for row in answers] == ["c0", "c1", "c2"]
    assert {row["response"]["status_code"] for row in answers} == {200}
    told = [row["response"].get("headers") for row in answers]
    assert told == [None, {"x-stratos-ignored": next(iter(IGNORED[url]))}, None]
    assert len({row["id"] for row in answers}) == 3
    assert TEXT in str(answers[0]["response"]["body"])


async def test_inputs_to_embed_are_computed_and_billed_once(
    worlds: list[AdminWorld], embedder: ScriptedEmbedder
) -> None:
    one, two = worlds
    url, names = "/v1/embeddings", [f"c{number}" for number in range(3)]
    rows = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"model": "base", "input": [name, "go"]}}
        for name in names
    ]
    found = await ended(two, (await submit(one, rows))["id"])
    assert (found["status"], found["request_counts"]["completed"]) == ("completed", len(rows))
    answers = await rows_of(one, found["output_file_id"])
    assert [(row["custom_id"], len(row["response"]["body"]["data"])) for row in answers] == [(n, 2) for n in names]
    await eventually(partial(is_billed, one, len(rows)), "each line is billed once")


async def test_lines_of_one_file_run_on_the_models_that_they_name(redis_url: str, tmp_path: Path) -> None:
    more = [{"path": save_second_model(tmp_path / "second")}]
    async with stream_worlds(redis_url, tmp_path, batches=QUICK, more_models=more) as [one, two]:
        rows = lines(2, "/v1/completions")
        rows[1]["body"] = {**rows[1]["body"], "model": "second"}
        found = await ended(two, (await submit(one, rows))["id"])
        answers = [row["response"]["body"]["model"] for row in await rows_of(one, found["output_file_id"])]
        assert answers == ["base", "second"]
        submits = [submit for world in (one, two) for submit in world.worker.submits]
        assert {(s.model_digest, s.meter.model) for s in submits} == {
            (base_digest(), "base"),
            (read_model_files(tmp_path / "second").digest, "second"),
        }


async def test_lines_that_fail_have_a_file_of_their_own(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    url = "/v1/completions"
    rows = lines(4, url)
    rows[1]["body"] = {**rows[1]["body"], "temperature": "hot"}
    found = await ended(two, (await submit(one, rows))["id"])
    assert found["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    assert [row["custom_id"] for row in await rows_of(one, found["output_file_id"])] == ["c0", "c2", "c3"]
    [failed] = await rows_of(one, found["error_file_id"])
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("c1", 400)
    assert failed["response"]["body"]["error"]["param"] == "temperature"


async def test_both_gateways_share_a_batch_and_bill_each_line_once(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.step_s = two.worker.step_s = 0.001
    num, num_batches = 4 * SLICE_LINES, 0
    while not all(world.worker.submits for world in worlds):  # one that looks late may find none left of the first
        found = await ended(two, (await submit(one, lines(num, "/v1/chat/completions")))["id"])
        assert found["request_counts"] == {"total": num, "completed": num, "failed": 0}
        names = [row["custom_id"] for row in await rows_of(one, found["output_file_id"])]
        assert names == [f"c{n}" for n in range(num)]
        num_batches += 1
    await eventually(partial(is_billed, one, num * num_batches), "every line is billed once")


async def test_a_gateway_that_stands_still_loses_its_slices(redis_url: str, tmp_path: Path) -> None:
    """It never answers; the other one computes the slice as well, under the same ids, which are billed once."""
    async with stream_worlds(redis_url, tmp_path, batches=QUICK) as [one, two]:
        one.worker.hang_after = 2
        begun = await submit(one, lines(2, "/v1/chat/completions"))
        await eventually(lambda: bool(one.worker.submits or two.worker.submits), "it runs")
        one.service.begin_leave()
        await one.service.drain()
        found = await ended(two, begun["id"])
        assert found["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert TEXT in str(await rows_of(two, found["output_file_id"]))
        ids = {submit.request_id for world in (one, two) for submit in world.worker.submits}
        assert ids == {submit.request_id for submit in two.worker.submits}


async def test_a_platform_without_room_lets_it_wait(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    for world in worlds:
        world.router.errors = [Overloaded("full", after_s=0.01)] * 5
    found = await ended(two, (await submit(one, lines(3, "/v1/chat/completions")))["id"])
    assert found["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_one_that_is_cancelled_keeps_what_was_answered(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    one.worker.hang_after = two.worker.hang_after = 3
    begun = await submit(one, lines(3, "/v1/chat/completions"))
    await eventually(lambda: bool(one.worker.submits or two.worker.submits), "it runs")
    answer = await call(two, "POST", f"{BATCHES}/{begun['id']}/cancel")
    assert answer.json()["status"] == "cancelling"
    found = await ended(one, begun["id"])
    assert (found["status"], found["cancelled_at"] is None) == ("cancelled", False)
    rows = await rows_of(one, found["output_file_id"]) + await rows_of(one, found["error_file_id"])
    assert sorted(row["custom_id"] for row in rows) == ["c0", "c1", "c2"]
    assert rows[-1]["error"]["code"] == "batch_cancelled"
    assert (await call(two, "POST", f"{BATCHES}/{begun['id']}/cancel")).json()["status"] == "cancelled"


async def test_one_whose_window_ends_says_what_was_not_computed(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, batches={**QUICK, "window_s": 0.5}) as [world]:
        world.worker.hang_after = 3
        found = await ended(world, (await submit(world, lines(2, "/v1/chat/completions")))["id"])
        assert (found["status"], found["output_file_id"]) == ("expired", None)
        rows = await rows_of(world, found["error_file_id"])
        assert [row["error"]["code"] for row in rows] == ["batch_expired"] * 2


async def test_what_was_answered_when_its_window_ends_is_kept(redis_url: str, tmp_path: Path) -> None:
    """Whichever gateway sees the end first: the other one may look for work all the time.

    A machine that is held up for longer than a lease has lines computed again, by workers that hang already.
    """
    for window_s in (1.0, 10.0, 60.0):  # a busy machine answers no line in the first one
        settings = {**QUICK, "window_s": window_s, "lease_s": max(QUICK["lease_s"], window_s / 4), "running": 1}
        async with stream_worlds(redis_url, tmp_path, batches=settings) as [one, two]:
            one.worker.hang_after = two.worker.hang_after = 3
            rows = lines(2, "/v1/chat/completions")
            rows[0]["body"] = {**rows[0]["body"], "max_tokens": 2}
            found = await ended(two, (await submit(one, rows))["id"])
            assert found["status"] == "expired"
            answers, errors = [await rows_of(one, found[name]) for name in ("output_file_id", "error_file_id")]
        if answers:
            break
    assert [row["custom_id"] for row in answers] == ["c0"]
    assert [(row["custom_id"], row["error"]["code"]) for row in errors] == [("c1", "batch_expired")]


async def test_the_backlog_is_of_all_open_batches(redis_url: str) -> None:
    files: Any = SimpleNamespace(key=lambda tenant_id: bytes(32))
    head = BatchHead(endpoint="/v1/moderations", input_file_id="file-1", window="24h", key_id="k", tenant_name="acme")
    async with open_redis(redis_url) as redis:
        store = BatchStore(redis, RecordStoreConfig(), files, "base", 1000)
        for number in range(260):
            assert await store.create(f"tenant-{number % 3}", f"batch_{number}", head, 10, 1, 600.0)
        backlog = await store.backlog()
    assert (backlog.num_lines, backlog.num_due) == (2600, 2600)


async def test_a_batch_that_is_asked_for_again_with_its_key_is_the_same(worlds: list[AdminWorld]) -> None:
    """However many asked at a time, and also where its input is gone by then."""
    one, two = worlds
    rows = lines(3, "/v1/chat/completions")
    body = {"input_file_id": await upload(one, rows), "endpoint": rows[0]["url"], "completion_window": "24h"}

    async def ask(world: AdminWorld, key: str = "nightly", by: str = "user", **more: Any) -> httpx.Response:
        return await call(world, "POST", BATCHES, by=by, json={**body, **more}, headers={"idempotency-key": key})

    answers = await asyncio.gather(*(ask(world) for world in worlds * 3))
    [name] = {answer.json()["id"] for answer in answers}
    await ended(two, name)
    assert (await call(one, "DELETE", f"/v1/files/{body['input_file_id']}")).status_code == 200
    again = await ask(two)
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (200, name, "completed")
    assert again.headers["idempotent-replayed"] == "true"
    other, long = await ask(one, metadata={"of": "today"}), await ask(one, "k" * 10_000)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert (long.status_code, long.json()["error"]["code"]) == (400, "invalid_idempotency_key")
    foreign = await ask(one, by="stranger", input_file_id=await upload(one, rows, by="stranger"))
    assert foreign.json()["id"] != name
    assert "idempotent-replayed" not in foreign.headers
    assert len((await call(two, "GET", BATCHES)).json()["data"]) == 1
    await eventually(partial(is_billed, one, len(rows)), "each line is billed once")


async def test_batches_belong_to_their_tenant(worlds: list[AdminWorld]) -> None:
    one, two = worlds
    names = [(await submit(one, lines(1, "/v1/moderations")))["id"] for _ in range(2)]
    for method, path in (("GET", f"{BATCHES}/{names[0]}"), ("POST", f"{BATCHES}/{names[0]}/cancel")):
        assert (await call(two, method, path, by="stranger")).status_code == 404
    assert (await call(two, "GET", BATCHES, by="stranger")).json()["data"] == []
    page = (await call(two, "GET", f"{BATCHES}?limit=1")).json()
    rest = (await call(two, "GET", f"{BATCHES}?limit=1&after={page['last_id']}")).json()
    assert {page["first_id"], rest["first_id"]} == set(names)
    assert (page["has_more"], rest["has_more"]) == (True, False)
    foreign = {"input_file_id": await upload(one, lines(1, "/v1/moderations"), by="stranger")}
    body = {"endpoint": "/v1/moderations", "completion_window": "24h", **foreign}
    assert (await call(one, "POST", BATCHES, json=body)).json()["error"]["code"] == "file_not_found"


async def test_what_cannot_be_computed_is_refused_by_name(worlds: list[AdminWorld]) -> None:
    one, _ = worlds
    file = await upload(one, lines(1, "/v1/completions"))
    good = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"input_file_id": "file-" + "0" * 24}, 400, "input_file_id"),
        ({"endpoint": "/v1/models"}, 400, "endpoint"),
        ({"endpoint": "/v1/responses"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after"),
        ({"more": 1}, 400, "more"),
        ({"input_file_id": await upload(one, lines(1, "/v1/completions", model="unknown"))}, 404, "model"),
    ]
    for more, status, param in refused:
        answer = await call(one, "POST", BATCHES, json={**good, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), more


async def test_a_batch_whose_input_is_deleted_has_failed(redis_url: str, tmp_path: Path) -> None:
    async with stream_worlds(redis_url, tmp_path, num=1, batches={**QUICK, "running": 0}) as [world]:
        begun = await submit(world, lines(1, "/v1/moderations"))
        await call(world, "DELETE", f"/v1/files/{begun['input_file_id']}")
        async with stream_worlds(redis_url, tmp_path / "second", num=1, batches=QUICK):
            found = await ended(world, begun["id"])
        assert found["status"] == "failed"
        assert "input file" in found["errors"]["data"][0]["message"]


async def test_lines_are_refused_like_requests(worlds: list[AdminWorld]) -> None:
    """Limits of a request and models act on each line; rates do not."""
    one, two = worlds
    url = "/v1/chat/completions"

    async def codes() -> set[str]:
        found = await ended(two, (await submit(one, lines(2, url)))["id"])
        rows = await rows_of(two, found["error_file_id"])
        return {row["response"]["body"]["error"]["code"] for row in rows}

    async def plan(**changes: Any) -> None:
        asked = {"plan": "local", "overrides": changes}
        assert (await one.call("PUT", "/tenants/acme", asked)).status_code in (200, 201, 204)

    async def are(expected: set[str]) -> bool:
        return await codes() == expected

    await plan(requests_per_min=1, max_tokens=5)
    await eventually(partial(are, {"invalid_request"}), "no line may have so many tokens")
    await plan(requests_per_min=1)
    await eventually(partial(are, set()), "all are answered, whatever the rate is")
    await plan(models=["other"])
    body = {"input_file_id": await upload(one, lines(1, url)), "endpoint": url, "completion_window": "24h"}

    async def is_refused() -> bool:
        return (await call(two, "POST", BATCHES, json=body)).status_code == 404

    await eventually(is_refused, "the model is not the tenant's any more")


@pytest.mark.parametrize(("by_prefix", "num_changes"), [(True, 1), (False, 11)])
async def test_lines_go_by_their_prefixes_and_answers_by_their_lines(
    redis_url: str, tmp_path: Path, by_prefix: bool, num_changes: int
) -> None:
    settings = {**QUICK, "running": 1, "prefix_order": by_prefix}
    async with stream_worlds(redis_url, tmp_path, num=1, batches=settings) as [world]:
        rows = lines(12, "/v1/completions", max_tokens=4)
        for number, row in enumerate(rows):
            row["body"] = {**row["body"], "prompt": [5 + number % 2] * 40 + [20 + number]}
        found = await ended(world, (await submit(world, rows))["id"])
        answers = await rows_of(world, found["output_file_id"])
        assert [row["custom_id"] for row in answers] == [f"c{number}" for number in range(12)]
        topics = [submit.prompt_ids[0] for submit in world.worker.submits]
        assert len(topics) == 12
        assert sum(one != two for one, two in pairwise(topics)) == num_changes
