"""Models that are added and removed while two gateways serve: nothing restarts, and the neighbours notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stratos.core.files.model_files import read_model_files
from stratos.core.placement import WorkerRole
from stratos.store.local_store import LocalStore
from stratos.store.models.forms import model_id
from stratos.store.models.texts import FOLDER, put_texts
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.values import adapter_id, encode_adapter
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from tests.support.paths import MODELS
from tests.support.reference.second_model import save_second_model
from tests.support.reference.shipped_model import base_digest
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld, admin_world
from tests.support.worlds.gateway_world import END_ID, make_adapter
from tests.support.worlds.stream_world import code_of, contents, read, stream_worlds, texts

PROMPT = [5, 6]
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>\\n' }}{# </think> #}"
"""A template whose model answers with its reasoning first."""


@dataclass
class Added:
    """Two gateways of one store, and two models that neither knows at its start."""

    one: AdminWorld
    two: AdminWorld
    objects: Path
    bodies: list[dict[str, Any]]
    """What is added: two revisions of one name."""

    async def ask(self, world: AdminWorld, model: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {self.one.keys['user']}"}
        body = {"model": model, "prompt": PROMPT, "max_tokens": 3, **more}
        return await world.public.post("/v1/completions", json=body, headers=headers)

    async def ids(self, world: AdminWorld) -> list[str]:
        headers = {"authorization": f"Bearer {self.one.keys['user']}"}
        return [row["id"] for row in (await world.public.get("/v1/models", headers=headers)).json()["data"]]

    async def rows(self, world: AdminWorld) -> dict[str, dict[str, Any]]:
        return {row["digest"]: row for row in (await world.call("GET", "/models")).json()["data"]}


async def added_worlds(stack: AsyncExitStack, redis_url: str, folder: Path, **overrides: Any) -> Added:
    """Two gateways that follow records quickly; fields of ``GatewaySettings`` may be overridden."""
    objects = folder / "objects"
    objects.mkdir()
    store = LocalStore(objects)
    bodies = [await body_of(store, f) for f in (MODELS / "draft", save_second_model(folder / "second"))]
    settings = {
        "object_store": {"url": f"file://{objects}"},
        "model_records": {"live_poll_s": 0.01, "retry_s": 0.01},
        **overrides,
    }
    worlds = [await stack.enter_async_context(admin_world(redis_url, folder, **settings)) for _ in range(2)]
    return Added(*worlds, objects, bodies)


@pytest.fixture
async def added(redis_url: str, tmp_path: Path) -> AsyncIterator[Added]:
    async with AsyncExitStack() as stack:
        yield await added_worlds(stack, redis_url, tmp_path)


async def test_a_model_is_served_by_every_gateway_from_the_call_that_added_it_to_the_one_that_removes_it(
    added: Added,
) -> None:
    one, two, [body, _] = added.one, added.two, added.bodies
    two.worker.script = lambda submit, choice: [7] * 40 + [END_ID]
    two.worker.step_s = 0.02
    stream = asyncio.create_task(added.ask(two, "base", max_tokens=40, logprobs=0))
    await eventually(lambda: two.worker.submits, "the neighbour's request runs")
    assert (await added.ask(two, "small")).status_code == 404
    answer = await one.call("POST", "/models", {**body, "size": "tiny"})
    assert (answer.status_code, answer.json()["size"]) == (200, "tiny"), answer.text
    for world in (one, two):
        found = await added.ask(world, "small")  # without any wait
        assert found.status_code == 200, found.text
        assert world.worker.submits[-1].model_digest == body["digest"]
        assert await added.ids(world) == ["base", "small"]
        row = (await added.rows(world))[body["digest"]]
        assert (row["state"], row["current"], row["from"]) == ("serving", True, "record")
    removed = await one.call("DELETE", "/models/small", digest=body["digest"][:12])
    assert removed.json() == {"removed": [body["digest"]]}
    for world in (one, two):
        await eventually(lambda world=world: _is_gone(added, world), "it is gone")
    assert (await added.ask(one, "small")).status_code == 404
    text = (await stream).json()["choices"][0]
    assert (len(text["logprobs"]["tokens"]), text["finish_reason"]) == (40, "length")
    entries = (await one.call("GET", "/audit")).json()["data"]
    acts = [(e["action"], e["id"], e["actor"][:4]) for e in entries if e["kind"] == "model"]
    assert acts == [(f"model.{act}", f"small/{body['digest']}", "key:") for act in ("add", "remove")]


async def _is_gone(added: Added, world: AdminWorld) -> bool:
    return await added.ids(world) == ["base"]


async def test_a_name_moves_to_its_new_revision_once_that_has_workers_and_what_runs_stays(added: Added) -> None:
    one, [old, new] = added.one, added.bodies
    assert (await one.call("POST", "/models", {**old, "size": "8b", "max_input_tokens": 99})).is_success
    one.worker.script = lambda submit, choice: [7] * 60 + [END_ID]
    one.worker.step_s = 0.02
    stream = asyncio.create_task(added.ask(one, "small", max_tokens=60))
    await eventually(lambda: one.worker.submits, "it runs on the old revision")
    recorded = (await one.call("POST", "/models", new)).json()
    assert (recorded["size"], recorded["max_input_tokens"]) == ("8b", 99)  # nothing is sold at another price by that
    await eventually(lambda: _is_served(added, new), "the new one is loaded")
    assert not (await added.rows(one))[new["digest"]]["current"]
    one.router.live = {new["digest"]: {WorkerRole.DECODE: 1}, old["digest"]: {WorkerRole.DECODE: 2}}
    one.router.seen = {new["digest"]: {WorkerRole.DECODE: 3}, old["digest"]: {WorkerRole.DECODE: 2}}
    await eventually(lambda: _is_current(added, new), "it has workers")
    one.worker.step_s = 0.0
    assert (await added.ask(one, "small")).is_success
    assert (await stream).is_success
    assert [s.model_digest for s in one.worker.submits] == [old["digest"], new["digest"]]
    rows = await added.rows(one)
    assert [rows[body["digest"]]["workers"]["decode"] for body in (old, new)] == [2, 1]
    assert [rows[body["digest"]]["ready"] for body in (old, new)] == ["2/2", "1/3"]
    back = await one.call("POST", "/models", old)  # what is added last is newest
    assert (back.json()["size"], back.json()["max_input_tokens"]) == ("8b", 99)
    await eventually(lambda: _is_current(added, old), "rolled back")
    assert (await one.call("DELETE", "/models/small")).json()["removed"] == [old["digest"], new["digest"]]


async def _is_served(added: Added, body: dict[str, Any]) -> bool:
    return (await added.rows(added.one)).get(body["digest"], {}).get("state") == "serving"


async def _is_current(added: Added, body: dict[str, Any]) -> bool:
    return bool((await added.rows(added.one))[body["digest"]]["current"])


async def test_what_cannot_be_served_is_refused_at_the_edge_and_by_name_at_a_gateway_that_lacks_it(
    added: Added, redis_url: str
) -> None:
    one, [body, second] = added.one, added.bodies
    for by in ("owner", "user"):
        assert (await one.call("POST", "/models", body, by=by)).status_code == 403
    for changes, status in (
        ({"digest": base_digest()}, 400),
        ({"text_digest": "0" * 64}, 404),
        ({"max_model_len": -1}, 400),
        ({"weights": 1}, 400),
        ({"digest": "x"}, 400),
        ({"name": "base", "digest": base_digest(), "size": "other"}, 400),
    ):
        assert (await one.call("POST", "/models", {**body, **changes})).status_code == status, changes
    assert (await one.call("DELETE", "/models/small")).status_code == 404
    assert (await one.call("POST", "/models", second)).is_success
    words = added.objects / FOLDER / body["text_digest"] / "tokenizer.json"
    words.write_text("{}", encoding="utf-8")  # altered behind the platform's back
    refused = await one.call("POST", "/models", {**body, "name": "bad"})
    assert (refused.status_code, "another digest" in refused.text) == (400, True)
    assert list(await added.rows(one)) == [base_digest(), second["digest"]]
    async with open_redis(redis_url) as redis:  # a record that no gateway was asked about
        value = {"text_digest": body["text_digest"]}
        writer = RecordWriter(RecordStore(redis), actor="cli:test")
        await writer.change(Kind.MODEL, model_id("bad", body["digest"]), "model.add", lambda old: value)
        tuned = encode_adapter(make_adapter("tuned"))
        await writer.change(Kind.ADAPTER, adapter_id("", "tuned"), "adapter.register", lambda old: tuned)
    refused = await one.call("POST", "/models", {**second, "name": "tuned"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "digest")  # "small" has it
    await one.call("DELETE", "/models/small")
    refused = await one.call("POST", "/models", {**second, "name": "tuned"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "name")  # an adapter has that
    assert (await one.call("POST", "/models", second)).is_success
    for world in (one, added.two):
        await eventually(lambda world=world: _is_refused(added, world, body), "it is refused")
        assert (await added.ask(world, "bad")).status_code == 503, "the store may have its files again"
        assert (await added.ask(world, "small")).is_success


async def _is_refused(added: Added, world: AdminWorld, body: dict[str, Any]) -> bool:
    row = (await added.rows(world)).get(body["digest"], {})
    labels = {"model": "bad", "model_digest": body["digest"]}
    is_shown = world.service.metrics.get_sample_value("stratos_model_refused", labels) == 1
    return is_shown and row.get("state") == "refused" and "another digest" in row["reason"]


async def test_a_stream_that_another_gateway_takes_over_stays_on_its_revision(redis_url: str, tmp_path: Path) -> None:
    records = {"live_poll_s": 0.01}
    async with stream_worlds(redis_url, tmp_path, model_records=records) as [one, two]:
        store = LocalStore(tmp_path / "blobs")
        second = save_second_model(tmp_path / "second")
        (second / "chat_template.jinja").write_text(THINKING, encoding="utf-8")
        old, new = [await body_of(store, f) for f in (MODELS / "draft", second)]
        assert (await one.call("POST", "/models", old)).is_success
        ask = {"model": "small", "messages": [{"role": "user", "content": "go"}], "max_tokens": 60, "stream": True}
        path = "/v1/chat/completions"
        one.worker.step_s, one.worker.hang_after = 0.01, 6
        begun = await read(one, "POST", path, ask, most=4, idempotency_key="moves")
        assert (await one.call("POST", "/models", new)).is_success
        two.router.live = {body["digest"]: {WorkerRole.DECODE: 1} for body in (old, new)}
        await eventually(lambda: _shows(two, new["digest"]), "the name has moved on")
        rest = await read(two, "POST", path, ask, idempotency_key="moves", last_event_id=begun.last_id)
        assert (rest.status, len(contents(begun, rest)[0]) > 0) == (200, True)
        assert {submit.model_digest for submit in two.worker.submits} == {old["digest"]}
        assert not any('"reasoning' in text for text in texts(rest))  # which the template of the new one opens
        later = await read(two, "POST", path, ask, idempotency_key="later")
        assert any('"reasoning' in text for text in texts(later))
        assert two.worker.submits[-1].model_digest == new["digest"]
        assert (await one.call("DELETE", "/models/small", digest=old["digest"])).is_success
        await eventually(lambda: _lacks(two, old["digest"]), "the old one is gone")
        again = await read(two, "POST", path, ask, idempotency_key="moves")
        assert code_of(again) == (410, "stream_gone")  # its tokens are no other revision's


async def body_of(store: LocalStore, folder: Path) -> dict[str, Any]:
    """What adds a folder as a revision of "small"."""
    texts = await put_texts(store, folder)
    return {"name": "small", "digest": read_model_files(folder).digest, "text_digest": texts}


async def _shows(world: AdminWorld, digest: str) -> bool:
    rows = (await world.call("GET", "/models")).json()["data"]
    return any(row["digest"] == digest and row["current"] for row in rows)


async def _lacks(world: AdminWorld, digest: str) -> bool:
    return digest not in {row["digest"] for row in (await world.call("GET", "/models")).json()["data"]}
