"""Roll-outs on real processes under mixed streams: each stream is of one revision, from its first token to its last."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

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


@pytest.mark.slow
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
    ends = [act for act in acts if act in ("rollout.back", "rollout.abort", "rollout.done")]
    assert ends[-3:] == ["rollout.back", "rollout.abort", "rollout.done"], "after those of other tests of this platform"


async def _has(platform: PlatformProcess, names: set[str]) -> bool:
    return set(await pids_of(platform)) == names
