"""Roll-outs at two gateways of one store: under load to the new revision, and back where that is slower or fails."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import DependencyDown, Overloaded
from stratos.core.ledger.steps import bucket_of
from stratos.core.placement import Placement, PlacementRequest, WorkerRole
from stratos.store.counters.arm_counts import ArmCounts, ArmCountStore, CountName
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos_gateway.rollouts.controller import RolloutController
from tests.integration.gateway.models.test_added_models import Added, added_worlds
from tests.integration.gateway.models.test_aliases import both_are_served
from tests.support.waiting import eventually
from tests.support.worlds.admin_world import AdminWorld
from tests.support.worlds.gateway_world import END_ID

FAST = {"poll_s": 0.02, "publish_s": 0.02}
WRITTEN, OVERDUE = "stratos_rollout_written_percent", "stratos_rollout_overdue_seconds"
TAG = "small@canary"
START = {"steps": [50, 100], "hold_s": 1, "gates": {"errors": 5}, "sticky": "request"}


@pytest.fixture
async def added(redis_url: str, tmp_path: Path) -> AsyncIterator[Added]:
    """Two gateways, and a tenant without limits."""
    async with AsyncExitStack() as stack:
        found = await added_worlds(stack, redis_url, tmp_path, rollouts=FAST)
        assert (await found.one.call("PUT", "/plans/open", {})).is_success
        assert (await found.one.call("PUT", "/tenants/acme", {"plan": "open"})).is_success
        yield found


async def start(world: AdminWorld, revision: str, **more: Any) -> Any:
    return await world.call("PUT", "/rollouts/small", {"to": revision[:12], **START, **more})


async def shown(world: AdminWorld, name: str = "small") -> dict[str, Any]:
    found: dict[str, Any] = (await world.call("GET", f"/rollouts/{name}")).json()
    return found


async def load(added: Added, until: Callable[[dict[str, Any]], bool], redis_url: str) -> Counter[int]:
    """Requests at both gateways until the roll-out is as it is to be; their statuses. A third gateway counts, too."""
    statuses, worlds = Counter[int](), itertools.cycle((added.one, added.two))
    async with open_redis(redis_url) as redis:
        third = ArmCountStore(redis, RecordStoreConfig(), "third")
        while not until(seen := await shown(added.one)):
            await count(third, "small", seen)
            asked = [added.ask(next(worlds), "small") for _ in range(12)]
            statuses.update(answer.status_code for answer in await asyncio.gather(*asked))
    return statuses


async def count(third: ArmCountStore, name: str, seen: dict[str, Any]) -> None:
    """Two requests fewer of the new revision than a gate asks for."""
    if seen["phase"] == "running":
        arms = {seen["old"]: 5000, seen["new"]: 198}
        counted = {arm: ArmCounts(n, ttfts=Counter({bucket_of(500_000): n})) for arm, n in arms.items()}
        await third.put(CountName(name, seen["started_us"], seen["epoch"]), counted)


async def alias_of(world: AdminWorld, name: str = "small") -> list[tuple[str, int]]:
    [row] = [row for row in (await world.call("GET", "/aliases")).json()["data"] if row["name"] == name]
    return [(target["digest"], target["weight"]) for target in row["targets"]]


async def test_a_roll_out_reaches_its_end_under_streams_that_stay_on_their_revision(
    added: Added, redis_url: str
) -> None:
    old, new = await both_are_served(added)
    one, two = added.one, added.two
    assert (await one.call("PUT", "/aliases/small", {"targets": [{"model": "small", "digest": old}]})).is_success
    for world in (one, two):
        world.worker.script = lambda submit, choice: [7] * (400 if submit.sampling.max_tokens == 400 else 2) + [END_ID]
    await eventually(lambda: _runs_on(added, old), "the alias is followed")
    for world in (one, two):
        world.worker.step_s = 0.01
    streams = [asyncio.create_task(added.ask(world, "small", max_tokens=400)) for world in (one, two)]
    for world in (one, two):
        await eventually(lambda world=world: world.worker.running, "a stream runs")
    for world in (one, two):
        world.worker.step_s = 0.0
    made = await start(one, new)
    assert (made.status_code, made.json()["percent"]) == (200, 50), made.text
    await eventually(lambda: _is_applied(one), "both gateways serve it")
    assert Counter(dict(await alias_of(two))) == Counter({old: 50, new: 50})
    assert (await start(two, new)).status_code == 400
    for method, path in (("DELETE", "/aliases/small"), ("DELETE", f"/models/small?digest={old}")):
        refused = await one.call(method, path)
        assert (refused.status_code, "roll-out" in refused.text) == (400, True), refused.text
    statuses = await load(added, lambda seen: seen["phase"] not in ("running", "paused"), redis_url)
    await eventually(lambda: _is_applied(two), "its end is in the alias, too")
    ended = await shown(two)
    assert (ended["phase"], ended["percent"], set(statuses)) == ("done", 100, {200}), ended
    assert await alias_of(one) == [(new, 100)]
    for stream in streams:
        answer = await stream
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 400)
    for world in (one, two):
        revisions = dict[str, set[str]]()
        for submit in world.worker.submits:
            revisions.setdefault(submit.request_id, set()).add(submit.model_digest)
        assert all(len(found) == 1 for found in revisions.values())
        assert set().union(*revisions.values()) == {old, new}
    acts = [e["action"] for e in (await one.call("GET", "/audit")).json()["data"] if e["id"] == "small"]
    rolling = [act for act in acts if act.startswith("rollout")]
    assert rolling == [
        "rollout.start",
        "rollout.applied",
        "rollout.step",
        "rollout.applied",
        "rollout.done",
        "rollout.applied",
    ]
    labels = {"model": "small", "model_digest": new, "phase": "done"}
    assert one.service.metrics.get_sample_value("stratos_rollout_percent", labels) == 100


async def _runs_on(added: Added, digest: str) -> bool:
    for world in (added.one, added.two):
        assert (await added.ask(world, "small")).is_success
    return all(world.worker.submits[-1].model_digest == digest for world in (added.one, added.two))


@pytest.mark.parametrize("fault", ["errors", "latency"])
async def test_a_revision_that_fails_or_is_slow_at_one_gateway_alone_is_rolled_back_by_whichever_looks(
    added: Added, redis_url: str, fault: str
) -> None:
    old, new = await both_are_served(added)
    assert (await start(added.one, new)).status_code == 400  # new requests go to the newest revision already
    gates = {"errors": 1} if fault == "errors" else {"errors": 1, "ttft_p99": 20}
    assert (await start(added.one, old, hold_s=600, gates=gates)).is_success
    _plant(added.two, old, fault)
    statuses = await load(added, lambda seen: seen["phase"] != "running", redis_url)
    found = await shown(added.one)
    assert (found["phase"], found["percent"]) == ("rolled_back", 0), found
    assert found["reason"].startswith("errors: " if fault == "errors" else "ttft_p99: ")
    await eventually(lambda: _is(added, new), "all go to the revision that it began with")
    assert (503 in statuses) is (fault == "errors")


async def test_of_two_roll_outs_at_once_one_reaches_its_end_and_the_other_goes_back(
    added: Added, redis_url: str
) -> None:
    """The model goes to its older revision, which fails at one gateway, and a tag of it to the newer one."""
    old, new = await both_are_served(added)
    tag = {"targets": [{"model": "small", "digest": old}]}
    assert (await added.one.call("PUT", f"/aliases/{TAG}", tag)).is_success
    await eventually(lambda: _has(added.two, TAG, old), "the tag is known")
    assert (await start(added.one, old, hold_s=600, gates={"errors": 1})).is_success
    assert (await added.two.call("PUT", f"/rollouts/{TAG}", {"to": new, **START})).is_success
    _plant(added.two, old, "errors")
    names, statuses = ("small", TAG), Counter[tuple[str, int]]()
    async with open_redis(redis_url) as redis:
        third = ArmCountStore(redis, RecordStoreConfig(), "third")
        while any(seen["phase"] == "running" for seen in [await shown(added.one, name) for name in names]):
            for name in names:
                await count(third, name, await shown(added.two, name))
            asked = [(name, world) for name in names for world in (added.one, added.two) for _ in range(6)]
            answers = await asyncio.gather(*(added.ask(world, name) for name, world in asked))
            statuses.update((name, answer.status_code) for (name, _), answer in zip(asked, answers, strict=True))
    assert [(await shown(added.one, name))["phase"] for name in names] == ["rolled_back", "done"]
    await eventually(lambda: _has(added.two, TAG, new), "the tag is at the newer revision")
    await eventually(lambda: _is(added, new), "and the model has gone back to it")
    assert {status for _, status in statuses} == {200, 503}, "nothing failed but what was planted"


async def _has(world: AdminWorld, name: str, digest: str) -> bool:
    return await alias_of(world, name) == [(digest, 100)]


async def _is(added: Added, digest: str) -> bool:
    return await alias_of(added.two) == [(digest, 100)]


def _plant(world: AdminWorld, digest: str, fault: str) -> None:
    schedule = world.router.schedule

    async def faulty(request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        if request.model_digest == digest:
            if fault == "errors":
                raise Overloaded("planted")
            await asyncio.sleep(0.7)
        return await schedule(request, timeout_s=timeout_s)

    world.router.schedule = faulty  # type: ignore[method-assign]


async def test_without_workers_or_requests_it_holds_and_a_pause_and_an_abort_are_a_persons(added: Added) -> None:
    old, new = await both_are_served(added, new_has_workers=False)
    one, two = added.one, added.two
    for body, status in (
        ({"to": new[:4]}, 400),
        ({"to": "0" * 12}, 404),
        ({"gates": {"moon": 1}}, 400),
        ({"steps": [50]}, 400),
        ({"moon": 1}, 400),
    ):
        answer = await start(one, new, **body)
        assert answer.status_code == status, answer.text
    assert (await one.call("PUT", "/rollouts/absent", {"to": new, **START})).status_code == 404
    assert (await one.call("GET", "/rollouts/small")).status_code == 404
    assert (await one.call("PUT", "/rollouts/small", {"to": new, **START}, by="owner")).status_code == 403
    assert (await start(one, new, steps=[100])).json()["percent"] == 100
    await eventually(lambda: _is_applied(one), "both gateways serve it")
    assert await alias_of(two) == [(new, 100)]
    await eventually(lambda: _runs_on(added, old), "the old revision goes on while the new one has no workers")
    assert (await two.call("POST", "/rollouts/small/pause")).json()["phase"] == "paused"
    assert (await one.call("POST", "/rollouts/small/resume")).json()["phase"] == "running"
    assert (await one.call("POST", "/rollouts/small/moon")).status_code == 404
    waits = (await shown(one))["verdicts"]
    assert [(verdict["gate"], verdict["outcome"]) for verdict in waits] == [("requests", "waits")]
    assert (await two.call("POST", "/rollouts/small/abort")).json()["phase"] == "aborted"
    assert await alias_of(one) == [(old, 100)]
    assert (await one.call("POST", "/rollouts/small/resume")).status_code == 400
    [row] = (await one.call("GET", "/rollouts")).json()["data"]
    assert (row["model"], row["phase"], row["is_applied"]) == ("small", "aborted", True)
    tag = {"targets": [{"model": "small", "digest": old}]}
    assert (await one.call("PUT", "/rollouts/small@canary", {"to": new, **START})).status_code == 400
    assert (await one.call("PUT", "/aliases/small@canary", tag)).is_success
    assert (await two.call("PUT", "/rollouts/small@canary", {"to": new, **START})).is_success
    await eventually(lambda: _is_split(one, "small@canary", old, new), "the tag goes over, and its model does not")
    assert await alias_of(two) == [(old, 100)]
    assert (await one.call("DELETE", f"/models/small?digest={new}")).status_code == 400
    assert (await one.call("POST", "/rollouts/small@canary/abort")).json()["is_applied"]
    assert await alias_of(two, "small@canary") == [(old, 100)]


async def test_a_gateway_that_lacks_the_revision_is_waited_for_and_one_that_leaves_takes_no_count_with_it(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        added = await added_worlds(stack, redis_url, tmp_path, rollouts={**FAST, "publish_s": 600.0})
        one, two = added.one, added.two
        assert (await one.call("PUT", "/plans/open", {})).is_success
        assert (await one.call("PUT", "/tenants/acme", {"plan": "open"})).is_success
        old, new = await both_are_served(added)
        assert (await one.call("PUT", "/aliases/small", {"targets": [{"model": "small", "digest": old}]})).is_success
        redis = await stack.enter_async_context(open_redis(redis_url))
        gateways = f"{RecordStoreConfig().prefix}:gateways"
        seconds, _ = await redis.time()
        await redis.hset(gateways, "third", str(seconds * 10**6))
        assert (await start(one, new, hold_s=600)).json()["is_applied"] is False
        assert [v["gate"] for v in (await shown(two))["verdicts"] if "third" in v["text"]] == ["gateways"]
        assert await alias_of(two) == [(old, 100)]
        await redis.hdel(gateways, "third")
        await eventually(lambda: _is_applied(two), "it begins")
        shows = functools.partial(one.service.metrics.get_sample_value, labels={"model": "small"})
        await eventually(lambda: (shows(WRITTEN), shows(OVERDUE)) == (50, 0), "both records are followed")
        for _ in range(3):
            assert (await added.ask(one, "small")).is_success
        await one.service.drain()
        assert sum((await shown(two))["requests"].values()) == 3
        for world in (one, two):
            world.router.live = {new: {WorkerRole.DECODE: 1}}

        async def away(self: RolloutController, model: str) -> bool:
            raise DependencyDown("planted")

        with monkeypatch.context() as planted:
            planted.setattr(RolloutController, "turn", away)
            assert (await two.call("POST", "/rollouts/small/abort")).status_code == 503
            assert (await two.call("DELETE", "/aliases/small")).status_code == 400
        again = (await two.call("POST", "/rollouts/small/abort")).json()
        assert (again["is_applied"], len(again["notes"])) == (True, 1)


async def _is_split(world: AdminWorld, name: str, *digests: str) -> bool:
    return await alias_of(world, name) == [(digest, 50) for digest in digests]


async def _is_applied(world: AdminWorld) -> bool:
    return bool((await shown(world))["is_applied"])
