"""What the autoscaler follows in a cluster, over real HTTP: nothing is asked again, whatever ends a watch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stratos.common.clock import FakeClock, SystemClock
from stratos.common.errors import DependencyDown, Overloaded
from stratos.core.placement import WorkerRole
from stratos.planning.settings import PoolBounds, PoolKey
from stratos_autoscaler.backends.kubernetes import KubernetesBackend
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.kubernetes.informer import Informer
from stratos_autoscaler.kubernetes.lease import ClusterLease
from stratos_autoscaler.kubernetes.settings import KubernetesConfig
from tests.support.fakes.kubernetes import NAMESPACE, FakeKubernetes, fake_kubernetes
from tests.support.waiting import eventually

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/auto"
DECODE = "demo-decode-base"
POOL = PoolKey(role=WorkerRole.DECODE, model_digest="", model_name="base")


@asynccontextmanager
async def watched_pods() -> AsyncIterator[tuple[FakeKubernetes, Informer]]:
    """A cluster with two pods, and an informer that sees them."""
    async with fake_kubernetes() as cluster:
        cluster.add_deployment(DECODE, "decode-worker", "base", 2)
        cluster.follow()
        api = ApiServer(cluster.url)
        informer = Informer(api, PODS, "app=workers")
        task = asyncio.create_task(informer.run())
        try:
            await eventually(lambda: names(informer) == set(cluster.pods))
            yield cluster, informer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await api.close()


def names(informer: Informer) -> set[str] | None:
    """Those that are known; ``None`` while it is not known what there is."""
    try:
        return {found["metadata"]["name"] for found in informer.objects()}
    except DependencyDown:
        return None


async def test_changes_come_by_the_watch_and_nothing_is_listed_twice() -> None:
    async with watched_pods() as (cluster, informer):
        pod = cluster.add_pod(DECODE, is_ready=False)
        await eventually(lambda: pod in (names(informer) or ()))
        cluster.make_ready(pod)
        await eventually(lambda: informer.known(pod) == cluster.pods[pod])
        del cluster.pods[pod]
        await eventually(lambda: names(informer) == set(cluster.pods))
        assert cluster.pods.num_lists == 1
        assert len(cluster.calls) == 2, "a list and a watch"


@pytest.mark.parametrize("how", ["done", "cut"])
async def test_a_watch_that_ended_goes_on_where_it_was(how: str) -> None:
    async with watched_pods() as (cluster, informer):
        last = cluster.add_pod(DECODE)
        await eventually(lambda: last in (names(informer) or ()))
        cluster.pods.end_watches(how)
        missed = cluster.add_pod(DECODE)
        await eventually(lambda: missed in (names(informer) or ()))
        assert cluster.pods.num_lists == 1
        version = int(cluster.pods[last]["metadata"]["resourceVersion"])
        await eventually(lambda: cluster.pods.watched_from[-1] >= version)  # the one that ended may have told of it


@pytest.mark.parametrize("line", ["<html>", '{"type": "ADDED"}', '{"type": "ERROR", "object": {"code": 500}}'])
async def test_what_is_no_event_is_followed_by_a_list(line: str) -> None:
    """The defect: the watch ended for good, and the process with it."""
    async with watched_pods() as (cluster, informer):
        cluster.pods.end_watches(line)
        await eventually(lambda: cluster.pods.num_lists == 2)
        missed = cluster.add_pod(DECODE)
        await eventually(lambda: missed in (names(informer) or ()))


@pytest.mark.parametrize("in_stream", [False, True])
async def test_of_a_version_that_is_gone_everything_is_listed_again(in_stream: bool) -> None:
    async with watched_pods() as (cluster, informer):
        cluster.pods.end_watches("cut")
        del cluster.pods[min(cluster.pods)]
        cluster.pods.forget(in_stream=in_stream)
        await eventually(lambda: names(informer) == set(cluster.pods))
        assert cluster.pods.num_lists == 2


async def test_a_bookmark_spares_the_list() -> None:
    async with watched_pods() as (cluster, informer):
        cluster.pods.bookmark()
        cluster.pods.end_watches()
        cluster.pods.forget(before_last=True)
        late = cluster.add_pod(DECODE)
        await eventually(lambda: late in (names(informer) or ()))
        assert cluster.pods.num_lists == 1


async def test_without_the_api_server_what_there_is_is_not_known_until_it_is_back() -> None:
    async with watched_pods() as (cluster, informer):
        cluster.is_down = True
        await eventually(lambda: names(informer) is None)
        missed = cluster.add_pod(DECODE)
        cluster.is_down = False
        await eventually(lambda: missed in (names(informer) or ()))
        assert cluster.pods.num_lists == 1, "its history goes back far enough"


async def test_what_was_written_here_is_seen_before_its_event() -> None:
    async with watched_pods() as (cluster, informer):
        pod = min(cluster.pods)
        newer = str(int(cluster.pods[pod]["metadata"]["resourceVersion"]) + 1000)
        informer.put(pod, {"metadata": {"name": pod, "resourceVersion": newer}, "spec": {"mine": True}})
        cluster.make_ready(pod)  # an event of before that write
        after = cluster.add_pod(DECODE)
        await eventually(lambda: after in (names(informer) or ()))
        known = informer.known(pod)
        assert known is not None
        assert known["spec"] == {"mine": True}
        informer.put(pod, {"metadata": {"name": pod, "resourceVersion": "1"}, "spec": {"mine": False}})
        assert informer.known(pod) == known, "an answer that events have overtaken"


@asynccontextmanager
async def decode_backend(
    ttl_s: float = 10.0, worker_port: int = 1
) -> AsyncIterator[tuple[FakeKubernetes, KubernetesBackend]]:
    """A backend with its tasks, which holds the lease and sees its one pod."""
    pool = PoolBounds(role=WorkerRole.DECODE, model_name="base", deployment=DECODE, min_workers=1, max_workers=6)
    async with fake_kubernetes() as cluster:
        cluster.add_deployment(DECODE, "decode-worker", "base", 1)
        cluster.follow()
        api = ApiServer(cluster.url)
        config = KubernetesConfig(namespace=NAMESPACE, lease_name="auto", worker_port=worker_port)
        backend = KubernetesBackend(api, config, [pool], 180.0, ttl_s, SystemClock())
        tasks = [asyncio.create_task(work) for work in backend.tasks().values()]
        try:
            await eventually(lambda: is_ready(backend))
            yield cluster, backend
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await api.close()


async def is_ready(backend: KubernetesBackend) -> bool:
    try:
        return await backend.hold_lease() and bool(await backend.workers())
    except DependencyDown:
        return False


async def test_an_idle_autoscaler_asks_nothing_but_its_lease() -> None:
    async with decode_backend() as (cluster, backend):
        before = len(cluster.calls)
        for _ in range(100):
            assert await backend.hold_lease()
            assert len(await backend.workers()) == 1
        assert len(cluster.calls) == before
        await backend.lease.renew()
        assert cluster.calls[before:] == [f"PUT {LEASE}"], "one call renews it"


async def test_a_start_is_seen_before_the_watch_tells_it() -> None:
    async with decode_backend() as (cluster, backend):
        cluster.deployments.is_silent = True
        await backend.start(POOL)
        assert [worker.is_starting for worker in await backend.workers()] == [False, True]


async def test_a_drain_that_hangs_does_not_cost_the_lease() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        await assert_renewed_beside_a_drain(silent.getsockname()[1])


async def assert_renewed_beside_a_drain(port: int) -> None:
    """Of a worker that takes the connection and never answers."""
    async with decode_backend(ttl_s=0.3, worker_port=port) as (cluster, backend):
        drain = asyncio.create_task(backend.drain(min(cluster.pods)))
        renewed = cluster.calls.count(f"PUT {LEASE}")
        await eventually(lambda: cluster.calls.count(f"PUT {LEASE}") >= renewed + 3)
        assert not drain.done()
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)


async def test_nothing_is_written_once_another_one_holds_the_lease() -> None:
    async with decode_backend(ttl_s=1000) as (cluster, backend):
        pod = min(cluster.pods)
        cluster.leases["auto"]["spec"]["holderIdentity"] = "another"
        assert await backend.hold_lease(), "it was not told"
        works = [backend.start(POOL), backend.drain(pod), backend.mark({pod: 8}), backend.note_digest("base", "d")]
        for work in works:
            with pytest.raises(Overloaded, match="another autoscaler"):
                await work
        assert [write for write in cluster.writes if "leases" not in write] == []


async def test_a_lease_that_cannot_be_renewed_is_given_up_before_it_ends() -> None:
    clock = FakeClock()
    async with fake_kubernetes() as cluster:
        api = ApiServer(cluster.url)
        lease = ClusterLease(api, NAMESPACE, "auto", "me", 10.0, clock)
        await lease.renew()
        cluster.is_down = True
        clock.advance(7.9)
        await lease.renew()
        assert lease.is_ours()
        clock.advance(0.2)
        with pytest.raises(DependencyDown):
            lease.is_ours()
        await api.close()
