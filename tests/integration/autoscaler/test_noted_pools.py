"""Pools that Deployments say of themselves: taken in, changed and dropped while the autoscaler runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stratos_autoscaler.kubernetes.noted_pools import POOL
from tests.integration.autoscaler.test_cluster import DEPLOYMENT, cluster_of
from tests.support.fakes.kubernetes import FakeKubernetes


def note(cluster: FakeKubernetes, name: str, **changes: Any) -> None:
    """Say the bounds of a pool at its Deployment."""
    labels = cluster.deployments[name]["labels"]
    bounds = {
        "role": labels["app.kubernetes.io/component"].removesuffix("-worker"),
        "model_name": labels["stratosserve.io/model"], "deployment": name, "mode": "planner", "min_workers": 1,
        "max_workers": 4, "floor": 0, **changes,
    }  # fmt: skip
    cluster.deployments[name]["metadata"]["annotations"][POOL] = json.dumps(bounds)
    cluster.deployments.changed(name)


async def test_a_model_that_comes_is_scaled_and_one_that_goes_is_left_alone(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, routers, make):
        one = make(follows=True)
        await one.turn(2)
        assert one.backend.known_pools() == ()
        note(cluster, DEPLOYMENT["decode"])
        routers.waiting = 100
        decode = cluster.deployments[DEPLOYMENT["decode"]]
        await one.turn_until(lambda: cluster.follow() or decode["spec"]["replicas"] == 4)
        cluster.add_deployment("demo-decode-small", "decode-worker", "small", 2)
        note(cluster, "demo-decode-small", mode="none")
        await one.turn(2)
        assert [pool.model_name for pool in one.backend.known_pools() or ()] == ["base", "small"]
        note(cluster, DEPLOYMENT["decode"], max_workers=6)
        await one.turn_until(lambda: cluster.follow() or decode["spec"]["replicas"] == 6)
        assert cluster.deployments["demo-decode-small"]["spec"]["replicas"] == 2, "its mode is none"
        del cluster.deployments["demo-decode-small"]
        await one.turn(2)
        assert [pool.max_workers for pool in one.backend.known_pools() or ()] == [6]
        await one.crash()


async def test_what_cannot_be_read_is_left_out_and_the_others_are_scaled(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, routers, make):
        note(cluster, DEPLOYMENT["decode"])
        for number, text in enumerate(("{", "[]", '{"role": "decode"}', json.dumps({"min_workers": 9}))):
            cluster.add_deployment(f"bad-{number}", "decode-worker", f"bad-{number}", 1)
            cluster.deployments[f"bad-{number}"]["metadata"]["annotations"][POOL] = text
        for name, changes in (("z-twice", {"model_name": "base"}), ("other", {"deployment": "not-me"})):
            cluster.add_deployment(name, "decode-worker", name, 1)
            note(cluster, name, **changes)
        one = make(follows=True)
        routers.waiting = 100
        decode = cluster.deployments[DEPLOYMENT["decode"]]
        await one.turn_until(lambda: decode["spec"]["replicas"] > 1)
        assert [pool.deployment for pool in one.backend.known_pools() or ()] == [DEPLOYMENT["decode"]]
        await one.crash()
