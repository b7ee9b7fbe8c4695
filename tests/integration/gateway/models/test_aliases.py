"""Aliases and splits at two gateways: sessions and running requests stay where they are, errors come at the edge."""

from __future__ import annotations

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


async def both_are_served(added: Added, *, new_has_workers: bool = True) -> tuple[str, str]:
    """Two revisions of "small" at both gateways; their digests, the newer one last."""
    old, new = (body["digest"] for body in added.bodies)
    _have_workers(added, base_digest(), old, *([new] if new_has_workers else []))
    for body in added.bodies:
        assert (await added.one.call("POST", "/models", body)).is_success
    for world in (added.one, added.two):
        current = new if new_has_workers else old
        await eventually(lambda world=world, current=current: _are_served(world, current), "both are served")
    return old, new


async def _are_served(world: AdminWorld, current: str) -> bool:
    answer = await world.call("GET", "/models")
    if not answer.is_success:
        return False  # a loaded Redis answers later
    rows = [row for row in answer.json()["data"] if row["name"] == "small"]
    is_current = any(row["digest"] == current and row["current"] for row in rows)
    return is_current and [row["state"] for row in rows] == ["serving"] * 2


def _have_workers(added: Added, *digests: str) -> None:
    for world in (added.one, added.two):
        world.router.live = dict.fromkeys(digests, LIVE)


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
    await is_followed(added, "chat")
    found = dict[str, str]()
    for user in (f"user-{number}" for number in range(64)):
        found[user] = await digest_of(added, one, "small", user=user)
        if len(set(found.values())) > 1:
            break
    assert set(found.values()) == {old, new}
    assert {user: await digest_of(added, two, "small", user=user) for user in found} == found
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


async def is_followed(added: Added, name: str) -> None:
    """Wait until both gateways know an alias, and with it all that was written before."""
    for world in (added.one, added.two):
        await eventually(lambda world=world: _lists(added, world, name), f"a gateway knows {name}")


async def _lists(added: Added, world: AdminWorld, name: str) -> bool:
    return any(row["id"] == name for row in await models_of(added, world))


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
    assert (await put(one, "last", ("small", "", 100))).is_success
    await is_followed(added, "last")
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
    await is_followed(added, "chat")
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


async def test_an_alias_moves_when_its_new_revision_has_workers_and_never_back(added: Added) -> None:
    old, new = await both_are_served(added, new_has_workers=False)
    one = added.one
    assert (await put(one, "chat", ("small", old, 100))).is_success
    assert (await put(one, "chat", ("small", new, 100))).json()["before"][0]["digest"] == old
    assert (await put(one, "talk", ("chat", "", 100))).is_success
    await is_followed(added, "talk")
    assert await digest_of(added, one, "chat") == old
    [listed] = [row for row in await models_of(added, one) if row["id"] == "chat"]
    assert (listed["revision"], [target["revision"] for target in listed["targets"]]) == (old, [new])
    assert (await one.call("DELETE", "/models/small", digest=old)).status_code == 400
    _have_workers(added, old, new)
    await eventually(lambda: _has_moved(added.two), "the record says that it has moved")
    _have_workers(added, old)
    assert (await put(one, "other", ("chat", "", 100))).is_success  # this gateway looks at workers for it
    await is_followed(added, "other")
    assert await digest_of(added, one, "chat") == new
    assert (await one.call("DELETE", "/models/small", digest=old)).is_success
    assert "alias.moved" in [entry["action"] for entry in (await one.call("GET", "/audit")).json()["data"]]


async def _has_moved(world: AdminWorld) -> bool:
    return not any(row["before"] for row in (await world.call("GET", "/aliases")).json()["data"])


async def _is_live(world: AdminWorld, digest: str, *, live: bool) -> bool:
    rows = (await world.call("GET", "/models")).json()["data"]
    return any(row["digest"] == digest and row["live"] is live for row in rows)


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
        of_stream = [found for found in two.worker.submits[num:] if list(found.prompt_ids) == ask["prompt"]]
        assert (rest.status, of_stream) == (403, [])


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
