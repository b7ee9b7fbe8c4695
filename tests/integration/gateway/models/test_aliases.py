"""Aliases and splits at two gateways: sessions and running requests stay where they are, errors come at the edge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stratos.core.placement import WorkerRole
from stratos.store.keys import KeyTerms
from stratos.store.local_store import LocalStore
from stratos.store.models.alias_forms import alias_to_json
from stratos.store.models.alias_record import AliasRecord, AliasTarget
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.values import adapter_id, encode_adapter
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from tests.integration.gateway.models.test_added_models import Added, added, body_of
from tests.support.paths import MODELS
from tests.support.reference.second_model import save_second_model
from tests.support.reference.shipped_model import base_digest
from tests.support.servers.record_stores import marked_store
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.gateway_world import make_adapter
from tests.support.worlds.stream_world import Read, code_of, read, stream_worlds

__all__ = ["added"]
LIVE = {WorkerRole.DECODE: 1}


async def both_are_served(added: Added) -> tuple[str, str]:
    """Two revisions of "small" with workers, at both gateways; their digests, the newer one last."""
    old, new = (body["digest"] for body in added.bodies)
    for world in (added.one, added.two):
        world.router.live = dict.fromkeys((old, new, base_digest()), LIVE)
    for body in added.bodies:
        assert (await added.one.call("POST", "/models", body)).is_success
    for world in (added.one, added.two):
        await eventually(lambda world=world: _is_current(world, new), "both are served")
    return old, new


async def _is_current(world: AdminWorld, digest: str) -> bool:
    rows = (await world.call("GET", "/models")).json()["data"]
    return any(row["digest"] == digest and row["current"] and row["live"] for row in rows)


async def put(world: AdminWorld, name: str, *targets: Any, **more: Any) -> Any:
    made = [{"model": model, "digest": digest, "weight": weight} for model, digest, weight in targets]
    return await world.call("PUT", f"/aliases/{name}", {"targets": made, **more})


async def digest_of(added: Added, world: AdminWorld, name: str, **more: Any) -> str:
    """Revision that a request for a name ran on."""
    answer = await added.ask(world, name, **more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    return world.worker.submits[-1].model_digest


async def test_every_gateway_splits_by_weight_alike_and_pins_and_tags_say_which_revision_answers(added: Added) -> None:
    old, new = await both_are_served(added)
    one, two = added.one, added.two
    made = await put(one, "small", ("small", old[:12], 50), ("small", new, 50))
    assert [t["digest"] for t in made.json()["targets"]] == [old, new]
    assert (await put(one, "small@stable", ("small", old, 100))).is_success
    assert (await put(one, "chat", ("small@stable", "", 100))).is_success
    users = [f"user-{number}" for number in range(8)]
    await eventually(lambda: _has(two, "chat"), "the other gateway knows them")
    found = [[await digest_of(added, world, "small", user=user) for user in users] for world in (one, two)]
    assert found[0] == found[1]
    assert set(found[0]) == {old, new}
    for world in (one, two):
        assert [await digest_of(added, world, name) for name in ("small@stable", "chat")] == [old, old]
        assert [await digest_of(added, world, f"small@{digest[:8]}") for digest in (old, new)] == [old, new]
        listed = {row["id"]: row for row in await models_of(added, world)}
        assert list(listed) == ["base", "small", "chat", "small@stable"]
        assert (listed["chat"]["parent"], listed["chat"]["revision"]) == ("small", old)
        assert listed["small"]["aliases"] == ["chat", "small@stable"]
        shown = await added.rows(world)
        assert (shown[old]["aliases"], shown[new]["aliases"]) == ({"small": 50, "small@stable": 100}, {"small": 50})
    labels = {"model": "small", "priority_class": "2", "outcome": "finished"}
    assert not one.service.metrics.get_sample_value("stratos_request_outcomes_total", {**labels, "model": "chat"})


async def _has(world: AdminWorld, name: str) -> bool:
    return any(row["name"] == name for row in (await world.call("GET", "/aliases")).json()["data"])


async def models_of(added: Added, world: AdminWorld, key: str = "") -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {key or added.one.keys['user']}"}
    data: list[dict[str, Any]] = (await world.public.get("/v1/models", headers=headers)).json()["data"]
    return data


async def test_what_an_alias_cannot_name_is_refused_and_what_it_names_stays(added: Added, redis_url: str) -> None:
    old, new = await both_are_served(added)
    one = added.one
    async with open_redis(redis_url) as redis:
        writer, tuned = RecordWriter(RecordStore(redis), actor="cli:test"), encode_adapter(make_adapter("tuned"))
        await writer.change(Kind.ADAPTER, adapter_id("", "tuned"), "adapter.register", lambda old: tuned)
        gone = alias_to_json(AliasRecord(name="gone", targets=(AliasTarget(model="small", digest="9" * 64),)))
        await writer.change(Kind.ALIAS, "gone", "alias.set", lambda old: gone)
    assert (await put(one, "chat", ("small", "", 100))).is_success
    for name, targets, status in (
        ("nothing", [("absent", "", 100)], 404),
        ("nothing", [("small", "0" * 64, 100)], 404),
        ("nothing", [("small", old, 60), ("small", new, 60)], 400),
        ("nothing", [("small", old, 50), ("small", old[:16], 50)], 400),
        ("base", [("small", old, 100)], 400),  # a model is split among its own revisions
        ("small", [("chat", "", 100)], 400),
        ("tuned", [("small", "", 100)], 400),
        ("small@aaaaaaaa", [("small", "", 100)], 400),
        ("chat", [("chat", "", 100)], 400),
    ):
        answer = await put(one, name, *targets)
        assert answer.status_code == status, (name, answer.text)
    assert (await put(one, "talk", ("chat", "", 100))).is_success
    loop = await put(one, "chat", ("talk", "", 100))
    assert (loop.status_code, "lead back" in loop.text) == (400, True)
    assert (await put(one, "small@stable", ("small", old, 100))).is_success
    assert (await one.call("POST", "/models", {**added.bodies[0], "name": "chat"})).status_code == 400
    for query in ({"digest": old}, {}):
        assert (await one.call("DELETE", "/models/small", **query)).status_code == 400
    assert (await one.call("DELETE", "/aliases/chat")).status_code == 400  # "talk" names it
    assert (await one.call("PUT", "/aliases/chat", {"targets": []}, by="owner")).status_code == 403
    for name in ("talk", "chat", "small@stable"):
        assert (await one.call("DELETE", f"/aliases/{name}")).json() == {"removed": name}
    assert (await one.call("DELETE", "/models/small", digest=old)).is_success
    told = await added.ask(one, "gone")
    assert (told.status_code, "stands for small" in told.text) == (404, True)
    assert (await added.ask(one, f"small@{'9' * 12}")).status_code == 404
    acts = [e["action"] for e in (await one.call("GET", "/audit")).json()["data"] if e["kind"] == "alias"]
    assert acts[0] == "alias.set"
    assert acts.count("alias.remove") == 3


async def test_a_key_uses_the_names_that_it_may_and_a_block_holds_for_every_name(
    added: Added, redis_url: str, tmp_path: Path
) -> None:
    old, _ = await both_are_served(added)
    one = added.one
    assert (await put(one, "small@stable", ("small", old, 100))).is_success
    assert (await put(one, "chat", ("small", "", 100))).is_success
    async with open_redis(redis_url) as redis:
        store = await marked_store(redis, tmp_path / "objects")
        terms = [KeyTerms(models=(name,)) for name in ("small", "chat", "base")]
        keys = [await store.keys.create_key("acme", f"user-{place}", terms=t) for place, t in enumerate(terms)]
    names = ("small", "small@stable", f"small@{old[:8]}", "chat")
    found = []
    for key in keys:
        headers = {"authorization": f"Bearer {key}"}
        bodies = [{"model": name, "prompt": [5], "max_tokens": 2} for name in names]
        answers = [await one.public.post("/v1/completions", json=body, headers=headers) for body in bodies]
        found.append([answer.status_code for answer in answers])
    assert found == [[200, 200, 200, 404], [404, 404, 404, 200], [404] * 4]
    assert [row["id"] for row in await models_of(added, one, keys[0])] == ["small", "small@stable"]
    assert (await one.call("POST", "/blocks", {"model": "small"})).is_success
    await eventually(lambda: _is_blocked(added, "chat"), "the block has come")
    assert [(await added.ask(one, name)).status_code for name in names] == [403] * 4


async def _is_blocked(added: Added, name: str) -> bool:
    return bool((await added.ask(added.one, name)).status_code == 403)


async def test_an_alias_moves_when_its_new_revision_has_workers_and_what_runs_stays(added: Added) -> None:
    old, new = await both_are_served(added)
    one = added.one
    one.router.live = {old: LIVE}
    assert (await put(one, "chat", ("small", old, 100))).is_success
    one.worker.script = lambda submit, choice: [7] * 60
    one.worker.step_s = 0.02
    stream = asyncio.create_task(added.ask(one, "chat", max_tokens=60))
    await eventually(lambda: one.worker.submits, "it runs on the old revision")
    assert (await put(one, "chat", ("small", new, 100))).json()["before"][0]["digest"] == old
    await eventually(lambda: _is_live(one, new, live=False), "the new one has no workers")
    one.worker.step_s = 0.0
    assert await digest_of(added, one, "chat") == old
    one.router.live = {old: LIVE, new: LIVE}
    await eventually(lambda: _runs_on(added, new), "the new pool is there")
    assert (await stream).is_success
    assert one.worker.submits[0].model_digest == old


async def _is_live(world: AdminWorld, digest: str, *, live: bool) -> bool:
    rows = (await world.call("GET", "/models")).json()["data"]
    return any(row["digest"] == digest and row["live"] is live for row in rows)


async def _runs_on(added: Added, digest: str) -> bool:
    return await digest_of(added, added.one, "chat") == digest


async def test_a_stream_of_an_alias_that_goes_to_another_model_stays_on_its_revision_at_another_gateway(
    redis_url: str, tmp_path: Path
) -> None:
    async with stream_worlds(redis_url, tmp_path, model_records={"live_poll_s": 0.01}) as [one, two]:
        store = LocalStore(tmp_path / "blobs")
        bodies = [await body_of(store, f) for f in (MODELS / "draft", save_second_model(tmp_path / "second"))]
        old, new = (body["digest"] for body in bodies)
        bodies[1]["name"] = "other"
        for world in (one, two):
            world.router.live = dict.fromkeys((old, new), LIVE)
        for body in bodies:
            assert (await one.call("POST", "/models", body)).is_success
        assert (await put(one, "chat", ("small", old, 100))).is_success
        ask = {"model": "chat", "prompt": [5, 6], "max_tokens": 60, "stream": True}
        one.worker.step_s, one.worker.hang_after = 0.01, 6
        begun = {key: await _begin(one, ask, key) for key in ("moves", "hidden", "refused")}
        assert (await put(one, "chat", (bodies[1]["name"], new, 100))).is_success
        await eventually(lambda: _names(two, new), "the alias has moved on")
        rest = await _go_on(two, ask, "moves", begun["moves"])
        assert (rest.status, {submit.model_digest for submit in two.worker.submits}) == (200, {old}), code_of(rest)
        await read(two, "POST", "/v1/completions", ask, idempotency_key="later")
        assert two.worker.submits[-1].model_digest == new
        await _block(one, two, "other")  # what the alias stands for now
        assert (await read(two, "POST", "/v1/completions", ask, idempotency_key="newest")).status == 403
        rest = await _go_on(two, ask, "hidden", begun["hidden"])
        assert (rest.status, two.worker.submits[-1].model_digest) == (200, old), code_of(rest)
        assert (await one.call("DELETE", "/blocks", {"model": "other"})).is_success
        await _block(one, two, "small")  # what the streams began with
        num = len(two.worker.submits)
        rest = await _go_on(two, ask, "refused", begun["refused"])
        assert (rest.status, len(two.worker.submits)) == (403, num)


async def _begin(world: AdminWorld, ask: dict[str, Any], key: str) -> str:
    """Leave a stream behind its first events; the id of the last one."""
    return (await read(world, "POST", "/v1/completions", ask, most=4, idempotency_key=key)).last_id


async def _go_on(world: AdminWorld, ask: dict[str, Any], key: str, last_id: str) -> Read:
    return await read(world, "POST", "/v1/completions", ask, idempotency_key=key, last_event_id=last_id)


async def _block(one: AdminWorld, two: AdminWorld, name: str) -> None:
    """Block a model, as both gateways know."""
    assert (await one.call("POST", "/blocks", {"model": name})).is_success
    body = {"model": name, "prompt": [5], "max_tokens": 1}

    async def is_blocked() -> bool:
        return (await read(two, "POST", "/v1/completions", body)).status == 403

    await eventually(is_blocked, f"{name} is blocked")


async def _names(world: AdminWorld, digest: str) -> bool:
    rows = (await world.call("GET", "/aliases")).json()["data"]
    is_named = any(target["digest"] == digest for row in rows for target in row["targets"])
    return is_named and await _is_live(world, digest, live=True)
