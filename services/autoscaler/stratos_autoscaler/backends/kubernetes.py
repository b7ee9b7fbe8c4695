"""The backend of a cluster: Deployments, changed through their scale, and a Lease whose holder may.

start   one more replica
drain   the pod gets the smallest deletion cost and gets a Drain call, then the Deployment gets one replica less:
        the ReplicaSet deletes that pod, whose end the drain that has begun belongs to
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.clock import Clock
from stratos.common.errors import NotFound, StratosError
from stratos.common.ids import new_incarnation
from stratos.planning.settings import PoolBounds, PoolKey
from stratos.rpc.clients.channel import translate_errors
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos_autoscaler.backends.base import Backend, BackendWorker, NotedDigest
from stratos_autoscaler.kubernetes.api import ApiServer
from stratos_autoscaler.kubernetes.lease import ClusterLease
from stratos_autoscaler.kubernetes.noted_pools import NotedPools
from stratos_autoscaler.kubernetes.settings import KubernetesConfig
from stratos_autoscaler.kubernetes.workloads import FIRST_TO_LEAVE, Pod, Workloads

_log = logging.getLogger(__name__)
DRAIN_TIMEOUT_S = 5.0


class KubernetesBackend(Backend):
    """Belongs to the event loop.

    Args:
        api: of the cluster.
        config: what of it is this release's.
        pools: with their Deployments.
        start_timeout_s: a pod that is not ready by then does not count as starting any more.
        lease_ttl_s: duration of the lease.
        clock: monotonic.
        dialer: connects to workers; called at the first drain.
    """

    def __init__(
        self,
        api: ApiServer,
        config: KubernetesConfig,
        pools: Sequence[PoolBounds],
        start_timeout_s: float,
        lease_ttl_s: float,
        clock: Clock,
        dialer: Callable[[], Dialer] = lambda: PLAIN,
    ) -> None:
        self._config = config
        self._pools = tuple(pool for pool in pools if pool.deployment)
        self._noted_pools = NotedPools(self._pools) if config.follow_pools else None
        self._start_timeout_s = start_timeout_s
        self._clock = clock
        self._dialer = dialer
        self.lease = ClusterLease(api, config.namespace, config.lease_name, new_incarnation(), lease_ttl_s, clock)
        self.workloads = Workloads(api, config, self.lease.check)
        self._pods: dict[str, Pod] = {}
        self._digests: dict[str, NotedDigest] = {}
        self._marked_s = float("-inf")

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """The lease is renewed, and pods and Deployments are watched, whatever the control loop waits for."""
        return {
            "lease": self.lease.run(),
            "pods": self.workloads.watched_pods.run(),
            "deployments": self.workloads.watched_deployments.run(),
        }

    async def hold_lease(self) -> bool:
        return self.lease.is_ours()

    async def workers(self) -> tuple[BackendWorker, ...]:
        """Pods, and for each that a Deployment should have and has not yet, one that starts."""
        pods, sizes = self.workloads.pods(), self.workloads.sizes()
        if self._noted_pools is not None:
            self._pools = self._noted_pools.now(self.workloads.deployments())
        self._pods = {pod.name: pod for pod in pods}
        found: list[BackendWorker] = []
        noted: dict[str, NotedDigest] = {}
        for pool in self._pools:
            size = sizes.get(pool.deployment)
            if size is None:
                raise NotFound(f"there is no Deployment {pool.deployment} in namespace {self._config.namespace}")
            if size.model_digest:
                was = noted.get(pool.model_name)
                is_doubted = size.is_changed or (was is not None and was != NotedDigest(size.model_digest))
                noted[pool.model_name] = NotedDigest(size.model_digest, is_doubted)
            own = [pod for pod in pods if _pool_of(pod, self._pools) is pool]
            num_missing = size.replicas - sum(not pod.is_leaving for pod in own)
            found += [self._worker(pool, pod) for pod in own]
            found += [
                BackendWorker(
                    worker_id=f"{pool.deployment}/{number}",
                    role=pool.role,
                    model_name=pool.model_name,
                    is_starting=True,
                )
                for number in range(num_missing)
            ]
        self._digests = noted
        return tuple(found)

    def known_pools(self) -> tuple[PoolBounds, ...] | None:
        return None if self._noted_pools is None else self._pools

    async def start(self, pool: PoolKey) -> str:
        bounds = self._bounds(pool)
        replicas = await self.workloads.change(bounds.deployment, 1)
        _log.info("%s should have %d pods", bounds.deployment, replicas)
        return ""

    async def drain(self, worker_id: str) -> None:
        await self.lease.check()  # the pod is told to drain before anything is written
        pod = self._pods.get(worker_id)
        bounds = None if pod is None else _pool_of(pod, self._pools)
        if pod is None or bounds is None:
            raise NotFound(f"there is no pod {worker_id} of a pool")
        await self.workloads.mark({**self._stale_marks(bounds, worker_id), worker_id: FIRST_TO_LEAVE})
        await self._begin_drain(pod)
        replicas = await self.workloads.change(bounds.deployment, -1)
        _log.info("%s should have %d pods, without %s", bounds.deployment, replicas, worker_id)

    def _stale_marks(self, pool: PoolBounds, victim: str) -> dict[str, int]:
        """Costs of pods that an earlier drain marked and that stayed, as the scale could not be changed: of two that
        leave first Kubernetes may take the wrong one.  None while a removal is under way: its pod is still there."""
        size = self.workloads.sizes().get(pool.deployment)
        staying = [pod for pod in self._pods.values() if _pool_of(pod, self._pools) is pool and not pod.is_leaving]
        if size is None or len(staying) > size.replicas:
            return {}
        return {pod.name: 0 for pod in staying if pod.deletion_cost == FIRST_TO_LEAVE and pod.name != victim}

    async def mark(self, loads: Mapping[str, int]) -> None:
        """Deletion costs in steps of powers of two: they need not follow every request."""
        now = self._clock.now()
        if now - self._marked_s < self._config.mark_interval_s:
            return
        self._marked_s = now
        costs = {name: load.bit_length() for name, load in loads.items() if name in self._pods}
        await self.workloads.mark({name: c for name, c in costs.items() if self._pods[name].deletion_cost != c})

    async def digests(self) -> Mapping[str, NotedDigest]:
        return self._digests

    async def note_digest(self, model_name: str, digest: str) -> None:
        for pool in self._pools:
            if pool.model_name == model_name:
                await self.workloads.note_model(pool.deployment, digest)

    async def close(self) -> None:
        """Leave the lease to a standby."""
        try:
            await self.lease.release()
        except StratosError as error:
            _log.warning("the lease ends by itself: %s", error.message)

    async def _begin_drain(self, pod: Pod) -> None:
        """The worker refuses work from now on; one that cannot be reached drains once it is deleted."""
        if not pod.address:
            return
        channel = self._dialer().channel(f"{pod.address}:{self._config.worker_port}", ANY_WORKER)
        try:
            async with translate_errors(peer=pod.name):
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                await stub.Drain(worker_pb2.DrainRequest(), timeout=DRAIN_TIMEOUT_S)
        except StratosError as error:
            _log.warning("the Drain call to %s failed: %s", pod.name, error.message)
        finally:
            await channel.close()

    def _bounds(self, pool: PoolKey) -> PoolBounds:
        for bounds in self._pools:
            if (bounds.role, bounds.model_name) == (pool.role, pool.model_name):
                return bounds
        raise NotFound(f"no Deployment is known of the {pool.role} pool of {pool.model_name!r}")

    def _worker(self, pool: PoolBounds, pod: Pod) -> BackendWorker:
        return BackendWorker(
            worker_id=pod.name,
            role=pool.role,
            model_name=pool.model_name,
            is_draining=pod.is_leaving,
            is_starting=not pod.is_ready and not pod.is_leaving and pod.age_s < self._start_timeout_s,
        )


def _pool_of(pod: Pod, pools: Sequence[PoolBounds]) -> PoolBounds | None:
    for pool in pools:
        if (f"{pool.role.value}-worker", pool.model_name) == (pod.component, pod.model_name):
            return pool
    return None
