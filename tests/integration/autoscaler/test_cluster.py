"""The autoscaler against an API server over real HTTP: scale, drains, leases, and what an outage does not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth
from stratos.core.placement import WorkerRole
from stratos.planning.fleet_sum import FleetSum
from stratos_autoscaler.backends.kubernetes import KubernetesBackend
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.kubernetes.informer import Informer
from stratos_autoscaler.kubernetes.workloads import DELETION_COST, FIRST_TO_LEAVE, MODEL_DIGEST, MODEL_REVISION
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.scaler import Scaler
from stratos_autoscaler.settings import AutoscalerSettings
from tests.support.fakes.kubernetes import NAMESPACE, FakeKubernetes, fake_kubernetes
from tests.support.fakes.kubernetes_watches import Collection
from tests.support.waiting import eventually
from tests.support.worlds.fleet_samples import MODEL, make_status
from tests.support.worlds.router_world import FakeWorker

DEPLOYMENT = {"decode": "demo-decode-base", "prefill": "demo-prefill-base"}


class Routers:
    """Show the ready pods of a cluster as live workers."""

    def __init__(self, cluster: FakeKubernetes) -> None:
        self.cluster = cluster
        self.waiting = 0
        self.seqs: dict[str, int] = {}

    async def fleet(self) -> FleetSum:
        ready = [
            (name, pod["metadata"]["labels"]["app.kubernetes.io/component"].removesuffix("-worker"))
            for name, pod in self.cluster.pods.items()
            if pod["status"]["conditions"][0]["status"] == "True"
        ]
        workers = [make_status(name, WorkerRole(role), num_running=self.seqs.get(name, 0)) for name, role in ready]
        queue = QueueDepth(model_digest=MODEL, priority_class=0, num_requests=self.waiting, num_tokens=0, oldest_s=0.0)
        fleet = Fleet(queues=(queue,), workers=tuple(FleetWorker(ref=w.ref, status=w, is_live=True) for w in workers))
        return FleetSum(fleet=fleet)


class Autoscaler:
    """One replica; its clock is the test's."""

    def __init__(self, cluster: FakeKubernetes, scaler: Scaler, backend: KubernetesBackend, clock: FakeClock) -> None:
        self.cluster, self.scaler, self.backend, self.clock = cluster, scaler, backend, clock
        self._renewed_s = float("-inf")
        self._watches: list[asyncio.Task[None]] = []

    async def turn(self, count: int = 1) -> None:
        """Seconds of the fake clock, with renewals as often as the lease's task; what the cluster has is seen."""
        if not self._watches:
            pods, deployments = self.backend.workloads.watched_pods, self.backend.workloads.watched_deployments
            self._watches = [asyncio.create_task(pods.run()), asyncio.create_task(deployments.run())]
        for _ in range(count):
            self.clock.advance(1)
            if self.clock.now() - self._renewed_s >= 3:
                self._renewed_s = self.clock.now()
                await self.backend.lease.renew()
            await eventually(lambda: self.cluster.is_down or self._sees_all())
            await self.scaler.turn()
            await asyncio.sleep(0.002)  # a start runs beside the loop, over a real connection

    async def turn_until(self, condition: Callable[[], bool]) -> None:
        """Starts go on beside the loop, over a real connection, so their turns cannot be counted."""
        for _ in range(200):
            await self.turn()
            if condition():
                return
        raise AssertionError("not within 200 turns")

    async def crash(self) -> None:
        """It leaves nothing behind but its lease."""
        for task in self._watches:
            task.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self.scaler.close()

    def _sees_all(self) -> bool:
        workloads = self.backend.workloads
        return shows(workloads.watched_pods, self.cluster.pods) and shows(
            workloads.watched_deployments, self.cluster.deployments
        )


def shows(informer: Informer, collection: Collection) -> bool:
    """Whether an informer has what the cluster has, in the same versions."""
    try:
        return {found["metadata"]["name"]: found for found in informer.objects()} == collection
    except DependencyDown:
        return False


@asynccontextmanager
async def cluster_of(tmp_path: Path, **pools: int) -> AsyncIterator[tuple[FakeKubernetes, Routers, Any]]:
    """A cluster with a Deployment for each role, and a maker of autoscalers."""
    made: list[tuple[Autoscaler, ApiServer]] = []
    async with fake_kubernetes() as cluster:
        for role, replicas in pools.items():
            cluster.add_deployment(DEPLOYMENT[role], f"{role}-worker", "base", replicas)
        cluster.follow()
        routers = Routers(cluster)

        def make(
            mode: str = "planner", least: int = 1, worker_port: int = 1, follows: bool = False, **planner: Any
        ) -> Autoscaler:
            bounds = [
                {
                    "role": role, "model_name": "base", "deployment": DEPLOYMENT[role], "mode": mode,
                    "min_workers": least, "max_workers": 6,
                }
                for role in pools
            ]  # fmt: skip
            settings = AutoscalerSettings(
                router_addresses=["r:1"],
                pools=[] if follows else bounds,
                planner={"quiet_s": 5, "idle_s": 10, **planner},
                kubernetes={
                    "namespace": NAMESPACE,
                    "worker_port": worker_port,
                    "mark_interval_s": 1,
                    "follow_pools": follows,
                },
            )
            clock, api = FakeClock(), ApiServer(cluster.url, tmp_path)
            backend = KubernetesBackend(
                api, settings.kubernetes, settings.pools, settings.start_timeout_s, settings.lease_ttl_s, clock
            )
            metrics = AutoscalerMetrics(CollectorRegistry())
            board = LoadBoard(settings.board, clock)
            scaler = Scaler(routers, backend, settings, metrics, board, clock)
            made.append((Autoscaler(cluster, scaler, backend, clock), api))
            return made[-1][0]

        try:
            yield cluster, routers, make
        finally:
            for autoscaler, api in made:
                await autoscaler.crash()
                await api.close()


def replicas(cluster: FakeKubernetes, role: str = "decode") -> int:
    return int(cluster.deployments[DEPLOYMENT[role]]["spec"]["replicas"])


async def test_a_backlog_raises_the_scale_once_until_its_pods_are_there(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, routers, make):
        autoscaler = make()
        await autoscaler.turn(2)
        routers.waiting = 60
        await autoscaler.turn_until(lambda: replicas(cluster) > 1)
        await autoscaler.turn(8)
        assert replicas(cluster) == 5, "four at most at once, and none while they start"
        cluster.follow(is_ready=False)
        await autoscaler.turn(8)
        assert replicas(cluster) == 5
        for pod in cluster.pods:
            cluster.make_ready(pod)
        await autoscaler.turn_until(lambda: replicas(cluster) == 6)


async def test_pods_that_never_come_up_take_no_pool_beyond_its_maximum(tmp_path: Path) -> None:
    """A model that cannot be loaded: each pod is given up in time, and one more would not come up either."""
    async with cluster_of(tmp_path, decode=1) as (cluster, _, make):
        autoscaler, num_turns = make(), 0
        while num_turns < 10:
            num_turns += replicas(cluster) >= 6
            cluster.follow(is_ready=False)
            for name, pod in cluster.pods.items():
                pod["status"]["conditions"][0]["status"] = "False"
                pod["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
                cluster.pods.changed(name)
            await autoscaler.turn()
        assert replicas(cluster) == 6
        assert autoscaler.scaler.history.entries()[-1].decision.reason == "at_max"


async def test_the_pod_with_the_least_work_is_drained_before_it_is_deleted(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=2) as (cluster, routers, make):
        worker = FakeWorker(make_status("x", WorkerRole.DECODE))
        await worker.start()
        autoscaler = make(worker_port=int(worker.address.rpartition(":")[2]))
        busy, idle = sorted(cluster.pods)
        routers.seqs = {busy: 3}
        try:
            await autoscaler.turn_until(lambda: replicas(cluster) < 2)
        finally:
            await worker.stop()
        assert replicas(cluster) == 1
        assert worker.num_drains == 1
        assert cluster.pods[idle]["metadata"]["annotations"] == {DELETION_COST: str(FIRST_TO_LEAVE)}
        cluster.follow()
        assert set(cluster.pods) == {busy}
        changes = [
            write.rpartition("/")[2]
            for write in cluster.writes
            if "leases" not in write and not write.endswith(DEPLOYMENT["decode"])
        ]
        assert changes == [idle, "scale"], "the mark comes first"


async def test_a_pod_that_an_earlier_drain_marked_and_left_is_not_taken_for_the_victim(tmp_path: Path) -> None:
    """Its worker drained and started again in the same pod, since the scale could not be changed."""
    async with cluster_of(tmp_path, decode=2) as (cluster, routers, make):
        busy, _ = sorted(cluster.pods)
        cluster.pods[busy]["metadata"]["annotations"] = {DELETION_COST: str(FIRST_TO_LEAVE)}
        autoscaler = make()
        routers.seqs = {busy: 3}
        await autoscaler.turn_until(lambda: replicas(cluster) < 2)
        assert cluster.pods[busy]["metadata"]["annotations"] == {DELETION_COST: "0"}
        cluster.follow()
        assert set(cluster.pods) == {busy}


async def test_a_leader_that_is_killed_during_a_scale_up_causes_no_flap(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, routers, make):
        first, second = make(), make()
        await first.turn(2)
        await second.turn(2)
        assert (first.scaler.is_active, second.scaler.is_active) == (True, False)
        routers.waiting = 60
        await first.turn_until(lambda: replicas(cluster) == 5)
        await first.crash()
        cluster.follow(is_ready=False)
        sizes = []
        for _ in range(20):
            await second.turn()
            sizes.append(replicas(cluster))
        assert second.scaler.is_active
        assert sizes == [5] * 20, "the pods that start are seen in the cluster, not remembered"
        for pod in cluster.pods:
            cluster.make_ready(pod)
        routers.waiting = 20
        await second.turn(20)
        assert replicas(cluster) == 5


async def test_of_two_autoscalers_one_acts_and_an_old_leader_does_no_harm(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, routers, make):
        first, second = make(), make()
        await first.turn()
        await second.turn(14)  # the first one stood still for longer than its lease
        assert second.scaler.is_active
        routers.waiting = 60
        # Its own clock has not moved, so it still believes in its lease; the cluster does not.
        await first.scaler.turn()
        await asyncio.sleep(0.05)
        assert replicas(cluster) == 1
        await second.backend.close()
        await first.turn(5)
        assert first.scaler.is_active, "a lease that was released need not run out"


async def test_without_the_api_server_nothing_changes_and_numbers_are_still_served(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=3) as (cluster, _, make):
        autoscaler = make()
        await autoscaler.turn(4)
        cluster.is_down = True
        await autoscaler.turn(60)
        cluster.is_down = False
        assert autoscaler.scaler.not_ready_reason() == ""
        assert autoscaler.scaler.history.entries()[-1].decision.reason == "no_data"
        await autoscaler.turn(5)
        assert replicas(cluster) == 3, "the quiet window begins again"


async def test_under_an_hpa_pods_are_marked_by_their_work_and_left_alone(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=3) as (cluster, routers, make):
        autoscaler = make(mode="hpa")
        names = sorted(cluster.pods)
        routers.waiting, routers.seqs = 500, {names[0]: 8, names[1]: 2}
        await autoscaler.turn(10)
        assert replicas(cluster) == 3
        costs = [cluster.pods[name]["metadata"]["annotations"].get(DELETION_COST, "0") for name in names]
        assert costs == ["4", "2", "0"]
        marks = [write for write in cluster.writes if "/pods/" in write]
        assert len(marks) == 2, "a cost is written where it has changed"


async def test_a_model_sleeps_with_all_its_pools_and_one_request_wakes_them(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1, prefill=1) as (cluster, routers, make):
        autoscaler = make(mode="hpa", least=0)
        await autoscaler.turn_until(lambda: (replicas(cluster), replicas(cluster, "prefill")) == (0, 0))
        cluster.follow()
        await autoscaler.turn(5)
        routers.waiting = 1
        await autoscaler.turn_until(lambda: (replicas(cluster), replicas(cluster, "prefill")) == (1, 1))


async def test_the_digest_of_a_model_is_kept_for_when_no_pod_tells_it(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, decode=1) as (cluster, _, make):
        await make().turn(2)
        noted = cluster.deployments[DEPLOYMENT["decode"]]["metadata"]["annotations"]
        assert noted == {MODEL_DIGEST: MODEL, MODEL_REVISION: ""}
        count = len([write for write in cluster.writes if "PATCH" in write])
        await make().turn(2)
        assert len([write for write in cluster.writes if "PATCH" in write]) == count
