"""Models of a cluster against an API server over real HTTP: brought up, refused, handed over in the middle, retired."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, DependencyDown, PermissionDenied, StratosError
from stratos_autoscaler.backends.kubernetes import KubernetesBackend
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.kubernetes.settings import KubernetesConfig
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.model_resources.cluster import ModelCluster
from stratos_autoscaler.model_resources.drains import Drains
from stratos_autoscaler.model_resources.plan import FINALIZER
from stratos_autoscaler.model_resources.reconciler import ModelReconciler
from tests.support.fakes.kubernetes import NAMESPACE, FakeKubernetes, fake_kubernetes
from tests.support.waiting import eventually
from tests.support.worlds.model_templates import NAME, OTHER_SOURCE, config_map, model, pool

DECODE, PREFILL = "demo-decode-chat", "demo-prefill-chat"


class Reconciling:
    """One autoscaler's part for Models, whose turns are the test's."""

    def __init__(self, cluster: FakeKubernetes, folder: Path) -> None:
        self.cluster, self.clock = cluster, FakeClock()
        self.requests = 0
        self.registry = CollectorRegistry()
        config = KubernetesConfig(namespace=NAMESPACE, model_templates=NAME, follow_pools=True)
        self.api = ApiServer(cluster.url, folder)
        self.backend = KubernetesBackend(self.api, config, (), 60, 10, self.clock)
        self.models = ModelCluster(self.api, config, self.backend.workloads, self.backend.lease.check)
        drains, metrics = Drains(self._count, config.model_drain_s, self.clock), AutoscalerMetrics(self.registry)
        self.reconciler = ModelReconciler(self.models, self.backend.lease, drains, metrics)
        watches = {**self.models.tasks(), **self.backend.tasks()}
        watches.pop("lease").close()
        self._tasks = [asyncio.create_task(watch) for watch in watches.values()]

    async def turn(self, count: int = 1) -> None:
        """Seconds of its clock; everything that the cluster has is seen before each."""
        for _ in range(count):
            self.clock.advance(1)
            await self.backend.lease.renew()
            await self.seen()
            await self.reconciler.turn()

    async def seen(self) -> None:
        await eventually(self._sees_all)

    async def turn_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(30):
            if condition():
                return
            await self.turn()
        raise AssertionError("not within 30 turns")

    def state(self, state: str) -> float | None:
        return self.registry.get_sample_value("stratos_autoscaler_model_resources", {"state": state})

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()

    async def _count(self, _names: Collection[str], _digest: str) -> int:
        return self.requests

    def _sees_all(self) -> bool:
        """Its objects are in the versions that the cluster has."""
        try:
            models, _ = self.models.models(), self.models.templates()
            known = {found["metadata"]["name"]: found for found in models}
            own = [found for item in models for found in self.models.observed(item).objects.values()]
        except DependencyDown:
            return False
        has = [self.cluster.deployments, self.cluster.jobs, self.cluster.budgets, self.cluster.scalers]
        there = [found for kind in has for found in kind.values() if "ownerReferences" in found["metadata"]]
        return known == self.cluster.models and sorted(map(version, own)) == sorted(map(version, there))


def version(found: dict[str, Any]) -> str:
    return str(found["metadata"]["resourceVersion"])


@asynccontextmanager
async def cluster_with(tmp_path: Path, *models: dict[str, Any]) -> AsyncIterator[tuple[FakeKubernetes, Any]]:
    """A cluster with templates and Models, and a maker of reconcilers."""
    made: list[Reconciling] = []
    async with fake_kubernetes() as cluster:
        cluster.config_maps[NAME] = config_map()
        for found in models:
            cluster.models[found["metadata"]["name"]] = found

        def make() -> Reconciling:
            made.append(Reconciling(cluster, tmp_path))
            return made[-1]

        try:
            yield cluster, make
        finally:
            for one in made:
                await one.close()


def end_job(cluster: FakeKubernetes, kind: str = "Complete") -> None:
    (name,) = cluster.jobs
    cluster.jobs[name]["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    cluster.jobs.changed(name)


def serve(cluster: FakeKubernetes, name: str, ready: int = 1) -> None:
    found = cluster.deployments[name]
    found["spec"]["replicas"] = 1
    found["status"] = {"readyReplicas": ready, "updatedReplicas": 1}
    cluster.deployments.changed(name)


def delete(cluster: FakeKubernetes, name: str) -> None:
    cluster.models[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.models.changed(name)


def change(cluster: FakeKubernetes, name: str, **spec: Any) -> None:
    found = cluster.models[name]
    found["spec"] |= spec
    found["metadata"]["generation"] += 1
    cluster.models.changed(name)


def status(cluster: FakeKubernetes, name: str = "chat") -> tuple[str, str]:
    said = cluster.models[name].get("status") or {}
    return said.get("state", ""), said.get("reason", "")


async def test_a_model_comes_up_and_its_pools_are_scaled_as_any(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model(is_ours=False)) as (cluster, make):
        one = make()
        await one.turn_until(lambda: len(cluster.jobs) == 1)
        await one.turn()
        assert status(cluster) == ("Loading", "Starting")
        assert set(cluster.deployments) == {DECODE, PREFILL}
        (job,) = cluster.jobs.values()
        assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-of-chat"
        assert [bounds.deployment for bounds in await pools_of(one)] == [DECODE, PREFILL]
        end_job(cluster)
        for name in (DECODE, PREFILL):
            serve(cluster, name)
        await one.turn_until(lambda: status(cluster) == ("Ready", "Serving"))
        assert one.state("Ready") == 1
        writes = len(cluster.writes)
        await one.turn(5)
        leases = [w for w in cluster.writes[writes:] if "leases" not in w]
        assert leases == [], "nothing is written while nothing changes"
        change(cluster, "chat", source=OTHER_SOURCE)
        await one.turn_until(lambda: job["metadata"]["name"] not in cluster.jobs and len(cluster.jobs) == 1)
        await one.turn()
        assert status(cluster) == ("Ready", "Recording"), "it serves as before"
        assert cluster.models["chat"]["status"]["digest"] == "b" * 64


async def pools_of(one: Reconciling) -> Any:
    await one.backend.workers()
    return one.backend.known_pools() or ()


async def test_names_of_values_and_of_earlier_models_are_refused_until_they_are_free(tmp_path: Path) -> None:
    base, chat = model("base", is_ours=False), model("chat", servedName="team/chat", is_ours=False)
    late = model("late", servedName="team/chat", is_ours=False)
    chat["metadata"]["creationTimestamp"], late["metadata"]["creationTimestamp"] = "2026-01-01", "2026-01-02"
    async with cluster_with(tmp_path, base, chat, late) as (cluster, make):
        one = make()
        await one.turn(3)
        assert status(cluster, "base") == ("Failed", "NameBelongsToValues")
        assert status(cluster, "late") == ("Failed", "NameTaken")
        assert set(cluster.deployments) == {DECODE, PREFILL}
        assert "finalizers" not in cluster.models["base"]["metadata"], "it may go at once"
        facts = json.loads(cluster.config_maps[NAME]["data"]["facts"]) | {"names": [], "pools": []}
        cluster.config_maps[NAME]["data"]["facts"] = json.dumps(facts)
        cluster.config_maps.changed(NAME)
        await one.turn_until(lambda: "demo-decode-base" in cluster.deployments)


async def test_an_object_of_another_owner_is_never_taken_over(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model()) as (cluster, make):
        cluster.add_deployment(DECODE, "decode-worker", "chat", 3)
        await make().turn(3)
        assert status(cluster) == ("Failed", "NameTaken")
        assert ("Deployment", DECODE) not in cluster.applied
        assert cluster.deployments[DECODE]["spec"] == {"replicas": 3}


@pytest.mark.parametrize("status_code", [422, 403, 500])
async def test_a_model_that_cannot_be_made_does_not_stop_the_others(tmp_path: Path, status_code: int) -> None:
    async with cluster_with(tmp_path, model("a"), model("b", template="none"), model("c", servedName="c")) as (
        cluster,
        make,
    ):
        cluster.refused["Deployment", "demo-prefill-a"] = "spec.template: Invalid value"
        cluster.refused_with = status_code
        one = make()
        await one.turn(3)
        assert status(cluster, "a") == ("Failed", "ApplyRefused")
        assert "spec.template: Invalid value" in cluster.models["a"]["status"]["message"]
        assert status(cluster, "b") == ("Failed", "UnknownTemplate")
        assert "demo-decode-c" in cluster.deployments
        assert one.state("Failed") == 2
        cluster.refused.clear()
        await one.turn_until(lambda: "demo-decode-a" in cluster.deployments)


@pytest.mark.parametrize("refusal", [BadRequest, PermissionDenied])
async def test_a_status_that_is_refused_does_not_stop_the_others(
    tmp_path: Path, refusal: type[StratosError], caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_with(tmp_path, model("a"), model("c", servedName="c")) as (cluster, make):
        one = make()
        call = one.api.call

        async def refusing(method: str, path: str, *args: Any, **options: Any) -> Any:
            if path.endswith("/models/a/status"):
                raise refusal("status: Invalid value")
            return await call(method, path, *args, **options)

        one.api.call = refusing
        await one.turn(3)
        assert "demo-decode-c" in cluster.deployments
        assert status(cluster, "c")[0] == "Loading"
        assert caplog.text.count("Model a stays as it is") == 1
        assert one.state("Failed") == 1, "its status cannot say so, so that the alert is all that does"


async def test_a_holder_that_lost_the_lease_in_the_middle_writes_nothing_more(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model()) as (cluster, make):
        first, second = make(), make()
        await first.turn(0)
        await first.backend.lease.renew()
        await first.seen()
        stop = cluster.applied

        class Taken(list[tuple[str, str]]):
            def append(self, found: tuple[str, str]) -> None:
                super().append(found)
                (lease,) = cluster.leases.values()
                lease["spec"]["holderIdentity"] = "another"

        cluster.applied = Taken(stop)
        await first.reconciler.turn()
        assert len(cluster.applied) == 1, "its own clock says that it holds the lease; the cluster does not"
        assert "status" not in cluster.models["chat"]
        (lease,) = cluster.leases.values()
        lease["spec"]["holderIdentity"] = ""
        cluster.applied = []
        await second.turn_until(lambda: len(cluster.deployments) == 2 and len(cluster.jobs) == 1)
        assert cluster.applied.count(("Job", next(iter(cluster.jobs)))) == 1


async def test_a_scaler_that_is_quicker_keeps_its_size(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model()) as (cluster, make):
        cluster.config_maps[NAME] = config_map(default=pool("decode", mode="none", min_workers=2, max_workers=2))
        one = make()
        await one.turn(3)
        assert cluster.deployments[DECODE]["spec"]["replicas"] == 2
        change(cluster, "chat", source=OTHER_SOURCE)
        await one.backend.lease.renew()
        await one.seen()
        cluster.deployments.is_silent = True
        cluster.deployments[DECODE]["spec"]["replicas"] = 6
        cluster.deployments.changed(DECODE)
        await one.reconciler.turn()
        assert cluster.deployments[DECODE]["spec"]["replicas"] == 6, "it was a conflict"
        cluster.deployments.is_silent = False
        cluster.deployments.changed(DECODE)
        await one.turn_until(lambda: arguments(cluster)[1] == "b" * 64)
        assert cluster.deployments[DECODE]["spec"]["replicas"] == 6


def arguments(cluster: FakeKubernetes) -> list[str]:
    containers: list[dict[str, Any]] = cluster.deployments[DECODE]["spec"]["template"]["spec"]["containers"]
    return list(containers[0]["args"])


async def test_a_model_that_goes_while_it_loads_leaves_nothing(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model(is_ours=False)) as (cluster, make):
        one = make()
        await one.turn_until(lambda: len(cluster.jobs) == 1)
        recording = next(iter(cluster.jobs))
        one.requests = 2
        delete(cluster, "chat")
        await one.turn_until(lambda: any("retire" in name for name in cluster.jobs))
        assert recording not in cluster.jobs, "none records it again"
        assert set(cluster.deployments) == {DECODE, PREFILL}
        end_job(cluster)
        await one.turn(10)
        assert status(cluster) == ("Leaving", "Draining")
        assert set(cluster.deployments) == {DECODE, PREFILL}, "requests that run go on"
        one.requests = 0
        await one.turn_until(lambda: not cluster.models)
        assert not cluster.deployments


async def test_a_model_that_leaves_says_so_whatever_the_api_server_refuses(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model()) as (cluster, make):
        one = make()
        delete(cluster, "chat")
        await one.turn_until(lambda: len(cluster.jobs) == 1)
        (name,) = cluster.jobs
        del cluster.jobs[name]
        cluster.refused["Job", name] = "quota"
        await one.turn(2)
        assert status(cluster) == ("Leaving", "ApplyRefused")


async def test_a_model_whose_name_the_values_took_goes_without_their_workers(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model()) as (cluster, make):
        labels = {"app.kubernetes.io/component": "decode-worker", "stratosserve.io/model": "chat"}
        cluster.deployments[DECODE] = {"metadata": {"name": DECODE, "labels": labels}, "spec": {"replicas": 1}}
        cluster.pods["theirs"] = {"metadata": {"name": "theirs", "labels": labels}, "status": {"phase": "Running"}}
        one = make()
        delete(cluster, "chat")
        await one.turn_until(lambda: len(cluster.jobs) == 1)
        end_job(cluster)
        await one.turn_until(lambda: not cluster.models)
        assert set(cluster.deployments) == {DECODE}


async def test_without_templates_or_the_lease_nothing_happens(tmp_path: Path) -> None:
    async with cluster_with(tmp_path, model(is_ours=False)) as (cluster, make):
        first, second = make(), make()
        await first.turn(2)
        writes = len(cluster.writes)
        await eventually(lambda: sees(second))
        await second.reconciler.turn()
        assert len(cluster.writes) == writes
        assert FINALIZER in cluster.models["chat"]["metadata"]["finalizers"]
        cluster.config_maps[NAME]["data"]["facts"] = "{"
        cluster.config_maps.changed(NAME)
        change(cluster, "chat", source=OTHER_SOURCE)
        await asyncio.sleep(0.05)
        await first.backend.lease.renew()
        await first.reconciler.turn()
        assert [write for write in cluster.writes[writes:] if "leases" not in write] == []


def sees(one: Reconciling) -> bool:
    try:
        return bool(one.models.models())
    except DependencyDown:
        return False
