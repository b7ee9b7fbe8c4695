"""Roll-outs on real processes under mixed streams: each stream is of one revision, from its first token to its last."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from stratos.cli.chaos.streams import StreamRun
from tests.integration.platform.models.calls import Admin, admin_key, pids_of, stratos
from tests.integration.platform.models.conftest import save_revision
from tests.integration.platform.models.mixed import Mixed, ask_until, until_recorded
from tests.integration.platform.replicated.test_streams import busiest_gateway
from tests.support.waiting import eventually
from tests.support.worlds.platform_process import PlatformProcess

NUM_CUT = 6
"""Open streams at least, under which a gateway is killed."""
FAR = 0.001
"""Nats, by which the revisions' answers are more off each other."""


@dataclass(frozen=True, slots=True)
class Small:
    """Two revisions of "small", of which the old one has all requests."""

    admin: Admin
    old: str
    new: str

    @classmethod
    async def add(cls, platform: PlatformProcess, folder: Path) -> Self:
        admin = Admin(platform, await admin_key(platform))
        [old] = await admin.revisions("small")
        await stratos(platform, "models", "alias", "small", f"small@{old[:12]}", "--key", admin.key)
        saved = str(save_revision(folder, 60000))
        await stratos(platform, "models", "add", "small", saved, "--wait-s", "100", "--key", admin.key)
        [new] = (await admin.revisions("small")).keys() - {old}
        return cls(admin, old, new)

    async def models(self, *arguments: str) -> str:
        return await stratos(self.admin.platform, "models", *arguments, "--key", self.admin.key)

    async def begin(self, revision: str, gates: str) -> None:
        options = ("--steps", "50,100", "--hold", "1s", "--sticky", "request", "--gate", gates)
        await self.models("rollout", "small", "--to", revision[:12], *options)

    async def is_sent_back(self) -> None:
        """Wait until the gate on drift has: both revisions answer otherwise, so it could not hold."""
        await eventually(partial(self.admin.is_at, "small", "rolled_back", 0), "its gate on drift sends it back")
        found = await self.admin.rollout("small")
        assert found["drift"]["mean"] > FAR, found
        assert (found["reason"].partition(":")[0], found.get("epoch", 0)) == ("drift", 0), "no weights were written"


@pytest.mark.timeout(300)
async def test_drift_is_measured_by_real_workers_before_a_request_gets_the_revision(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    pids, small = await pids_of(platform), await Small.add(platform, tmp_path / "next")
    await small.begin(small.new, f"drift={FAR}")
    await small.is_sent_back()
    await small.begin(small.new, "drift=50")
    await eventually(partial(small.admin.is_at, "small", "running", 50), "what holds goes on")
    await small.models("rollout", "small", "--abort")
    await small.models("remove", "small", "--digest", small.new[:12])
    await small.models("unalias", "small")
    await eventually(partial(_has, platform, set(pids)), "the workers of what was removed have left")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_gate_a_crash_a_killed_gateway_and_a_removal_cost_no_stream_and_no_revision_mixes(
    platform: PlatformProcess, tmp_path: Path, crashing: Path
) -> None:
    pids, small = await pids_of(platform), await Small.add(platform, tmp_path / "next")
    admin, old, new, models, begin = small.admin, small.old, small.new, small.models, small.begin
    await until_recorded(platform)
    mixed = Mixed(platform, "small")
    await mixed.learn(old, new)

    async def first_half(run: StreamRun, in_effect: asyncio.Event) -> None:
        await begin(new, f"drift={FAR}")
        await small.is_sent_back()
        await models("add", "small", str(crashing))
        [dying] = (await admin.revisions("small")).keys() - {old, new}
        await begin(dying, "errors=1%")
        await eventually(partial(admin.is_at, "small", "running", 50), "one without workers is begun")
        await models("rollout", "small", "--abort")
        await models("remove", "small", "--digest", dying[:12])
        await begin(new, "errors=5%,drift=50")
        await eventually(partial(admin.is_at, "small", "running", 50), "the real one is begun")
        in_effect.set()
        await eventually(lambda: run.num_open() >= NUM_CUT, "streams that a gateway can take with it")
        (await asyncio.to_thread(busiest_gateway, platform)).kill()

    found = await mixed.run(first_half)
    assert min(found[old], found[new]) > 0, found

    async def second_half(run: StreamRun, in_effect: asyncio.Event) -> None:
        statuses = await ask_until(admin, "small", lambda seen: seen.get("phase") == "done")
        assert set(statuses) == {200}
        await eventually(partial(admin.is_at, "small", "done", 100), "the other gateway went on with it")
        in_effect.set()
        await eventually(lambda: run.num_open() >= NUM_CUT, "streams of the revision that is removed")
        await models("alias", "small", f"small@{old[:12]}")
        await models("remove", "small", "--digest", new[:12])

    found = await mixed.run(second_half)
    assert found[new] > 0, found
    assert list(await admin.revisions("small")) == [old]
    await models("unalias", "small")
    await eventually(partial(_has, platform, set(pids)), "the workers of what was removed have left")
    restarted = {name for name, pid in (await pids_of(platform)).items() if pid != pids[name]}
    assert len(restarted) == 1
    assert restarted < {"gateway-0", "gateway-1"}
    acts = [e["action"] for e in (await admin.call("GET", "/audit")).json()["data"] if e["id"] == "small"]
    assert [act for act in acts if act in ("rollout.back", "rollout.abort", "rollout.done")] == [
        "rollout.back", "rollout.abort", "rollout.done",
    ]  # fmt: skip


async def _has(platform: PlatformProcess, names: set[str]) -> bool:
    return set(await pids_of(platform)) == names


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_roll_outs_at_once_outlive_a_router_a_worker_and_a_gateway_without_the_object_store(
    platform: PlatformProcess, tmp_path: Path
) -> None:
    """Every request that is counted is a real one here."""
    admin = Admin(platform, await admin_key(platform))
    pids = await pids_of(platform)
    olds = {name: next(iter(await admin.revisions(name))) for name in ("base", "small")}
    news = dict[str, str]()

    async def models(*arguments: str) -> str:
        return await stratos(platform, "models", *arguments, "--key", admin.key)

    for context, (name, old) in enumerate(olds.items(), start=50000):
        await models("alias", name, f"{name}@{old[:12]}")
        await models("add", name, str(save_revision(tmp_path / name, context)), "--wait-s", "100")
        [news[name]] = (await admin.revisions(name)).keys() - {old}
    await until_recorded(platform)
    mixed = Mixed(platform, "small")
    await mixed.learn(olds["small"], news["small"])
    for name, new in news.items():
        options = (
            "--steps",
            "25,50,100",
            "--hold",
            "15s",
            "--sticky",
            "request",
            "--gate",
            "errors=5%,ttft_p99=+1000%",
        )
        await models("rollout", name, "--to", new[:12], *options)

    def has_ended(seen: dict[str, Any]) -> bool:
        return seen.get("phase") in ("done", "rolled_back", "aborted")

    loads = [asyncio.create_task(ask_until(admin, name, has_ended, num_counted=0)) for name in news]
    found = Counter[str]()
    for strike in (_kill_router, partial(_kill_worker, news["small"]), partial(_kill_without_store, admin)):
        found += await mixed.run(partial(_struck, platform, strike))
    while not all(load.done() for load in loads):
        found += await mixed.run(partial(_struck, platform, None))
    assert min(found[olds["small"]], found[news["small"]]) > NUM_CUT, found
    for name, load in zip(news, loads, strict=True):
        assert set(load.result()) <= {0, 200}, (name, load.result())  # 0: its gateway was killed
        await eventually(partial(admin.is_at, name, "done", 100), "all requests go to the new revision")
        await models("alias", name, f"{name}@{olds[name][:12]}")
        await models("remove", name, "--digest", news[name][:12])
        await models("unalias", name)
    await eventually(partial(_has, platform, set(pids)), "the workers of what was removed have left")


Strike = Callable[[PlatformProcess], Awaitable[None]]


async def _struck(platform: PlatformProcess, strike: Strike | None, run: StreamRun, in_effect: asyncio.Event) -> None:
    await eventually(lambda: run.num_open() >= NUM_CUT, "streams under which it comes")
    if strike is not None:
        await strike(platform)
    in_effect.set()


async def _kill_router(platform: PlatformProcess) -> None:
    os.kill((await pids_of(platform))["router-0"], signal.SIGKILL)


async def _kill_worker(digest: str, platform: PlatformProcess) -> None:
    os.kill((await pids_of(platform))[f"decode-small-{digest[:8]}-0"], signal.SIGKILL)


async def _kill_without_store(admin: Admin, platform: PlatformProcess) -> None:
    """The gateway that comes back cannot load what it has no copy of, so roll-outs hold until the store is there."""
    store = Path(platform.facts()["object_store_url"].removeprefix("file://"))
    away = store.with_name("away")
    await asyncio.to_thread(store.rename, away)
    (await asyncio.to_thread(busiest_gateway, platform)).kill()

    async def is_held() -> bool:
        seen = [await admin.rollout(name) for name in ("base", "small")]
        gates = {verdict["gate"] for rollout in seen for verdict in rollout.get("verdicts", ())}
        return "gateways" in gates

    await eventually(is_held, "a living gateway does not serve the new revisions")
    await asyncio.to_thread(away.rename, store)
