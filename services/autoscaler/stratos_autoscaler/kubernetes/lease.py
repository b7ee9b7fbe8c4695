"""Which autoscaler acts: the holder of a ``coordination.k8s.io/v1`` Lease.

A standby takes the Lease over once it has not changed for its whole duration on the standby's own clock: clocks of
nodes are never compared.  Every write carries the version that was read, so of two writers one fails.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos_autoscaler.kubernetes.api import ABSENT, CONFLICT, ApiServer, Object


@dataclass(slots=True)
class _Seen:
    """A version of the Lease, and when it was first seen here."""

    version: str
    at_s: float


class ClusterLease:
    """Belongs to the event loop.

    Args:
        api: of the cluster.
        namespace: of the Lease.
        name: of the Lease.
        holder: this process.
        clock: monotonic.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str, holder: str, clock: Clock) -> None:
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._namespace = name, namespace
        self._holder = holder
        self._clock = clock
        self._seen = _Seen("", clock.now())
        self._renewed_s = float("-inf")

    async def hold(self, ttl_s: float) -> bool:
        """Take or extend the Lease; whether this process has it. Raises like ``ApiServer.call``."""
        now = self._clock.now()
        if now - self._renewed_s < ttl_s / 3:
            return True  # it is renewed three times within its duration
        self._renewed_s = float("-inf")
        found = await self._api.read(f"{self._folder}/{self._name}")
        if found is None:
            return await self._write("POST", self._folder, self._lease({}, {}, ttl_s), now)
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") != self._holder and not self._is_over(found, spec, now):
            return False
        lease = self._lease(found["metadata"], spec, ttl_s)
        return await self._write("PUT", f"{self._folder}/{self._name}", lease, now)

    async def is_held(self) -> bool:
        """Whether the cluster's object, read now, names this process as holder: checked before every act."""
        found = await self._api.read(f"{self._folder}/{self._name}")
        return found is not None and (found.get("spec") or {}).get("holderIdentity") == self._holder

    async def release(self) -> None:
        """Give it up, so that a standby need not wait for its end."""
        found = await self._api.read(f"{self._folder}/{self._name}")
        if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._holder:
            found["spec"]["holderIdentity"] = ""
            await self._api.call("PUT", f"{self._folder}/{self._name}", found)
        self._renewed_s = float("-inf")

    def _is_over(self, found: Object, spec: Object, now: float) -> bool:
        version = found["metadata"]["resourceVersion"]
        if version != self._seen.version:
            self._seen = _Seen(version, now)
        return not spec.get("holderIdentity") or now - self._seen.at_s > float(spec.get("leaseDurationSeconds") or 0)

    def _lease(self, metadata: Object, spec: Object, ttl_s: float) -> Object:
        written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_own = spec.get("holderIdentity") == self._holder
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": max(1, round(ttl_s)),
                "acquireTime": spec.get("acquireTime", written) if is_own else written,
                "renewTime": written,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (not is_own),
            },
        }

    async def _write(self, method: str, path: str, lease: Object, now: float) -> bool:
        status, _ = await self._api.call(method, path, lease)
        if status in (ABSENT, CONFLICT):
            return False
        self._renewed_s = now
        return True
