"""Which autoscaler acts: the holder of a ``coordination.k8s.io/v1`` Lease, renewed by a task of its own.

A standby takes the Lease over once it has not changed for its whole duration on the standby's own clock: clocks of
nodes are never compared.  The holder trusts it for less than that, and reads it again before every write.  Every write
of the Lease carries the version that was read, so of two writers one fails.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, Overloaded, StratosError
from stratos_autoscaler.kubernetes.api import ABSENT, CONFLICT, ApiServer, Object

_log = logging.getLogger(__name__)
TRUSTED = 0.8
"""Share of the duration for which a holder counts on a Lease that it could not renew."""


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
        ttl_s: its duration.
        clock: monotonic.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str, holder: str, ttl_s: float, clock: Clock) -> None:
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._namespace = name, namespace
        self._holder = holder
        self._ttl_s = ttl_s
        self._clock = clock
        self._seen = _Seen("", clock.now())
        self._own: Object | None = None
        """As this process wrote it last, while it is the holder."""
        self._renewed_s = float("-inf")
        self._problem = "the lease was not read yet"

    def is_ours(self) -> bool:
        """Whether this process has the Lease, as far as it knows.

        Raises:
            DependencyDown: the API server does not say whose it is.
        """
        if self._clock.now() - self._renewed_s < TRUSTED * self._ttl_s:
            return True
        if self._problem:
            raise DependencyDown(self._problem)
        return False

    async def check(self) -> None:
        """Read it now, before a write.

        Raises:
            Overloaded: another one holds it.
            StratosError: as ``ApiServer.call``.
        """
        found = await self._api.read(f"{self._folder}/{self._name}")
        if found is None or (found.get("spec") or {}).get("holderIdentity") != self._holder:
            raise Overloaded("another autoscaler holds the lease")

    async def run(self) -> None:
        """Root task: take it and renew it, three times within its duration, until cancelled.

        After a call that hung for a third of it the next one comes at once.
        """
        while True:
            begun_s = self._clock.now()
            await self.renew()
            await asyncio.sleep(max(0.0, begun_s + self._ttl_s / 3 - self._clock.now()))

    async def renew(self) -> None:
        """Try once to take or to renew it."""
        begun_s = self._clock.now()
        try:
            is_ours = await self._take()
        except StratosError as error:
            if error.message != self._problem:
                _log.warning("the lease was not renewed: %s", error.message)
            self._problem, self._own = error.message, None
            return
        self._problem = ""
        self._renewed_s = begun_s if is_ours else float("-inf")

    async def release(self) -> None:
        """Give it up, so that a standby need not wait for its end."""
        found = await self._api.read(f"{self._folder}/{self._name}")
        if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._holder:
            found["spec"]["holderIdentity"] = ""
            await self._api.call("PUT", f"{self._folder}/{self._name}", found)
        self._renewed_s, self._own = float("-inf"), None

    async def _take(self) -> bool:
        """One write while it is ours; else it is read first."""
        if self._own is not None and await self._write("PUT", self._renewed(self._own["metadata"], self._own["spec"])):
            return True
        found = await self._api.read(f"{self._folder}/{self._name}", timeout_s=self._ttl_s / 3)
        if found is None:
            return await self._write("POST", self._renewed({}, {}))
        spec = found.get("spec") or {}
        if spec.get("holderIdentity") != self._holder and not self._is_over(found, spec):
            return False
        return await self._write("PUT", self._renewed(found["metadata"], spec))

    def _is_over(self, found: Object, spec: Object) -> bool:
        """Called after the read: what was read may have been written while it was on its way."""
        version, now = found["metadata"]["resourceVersion"], self._clock.now()
        if version != self._seen.version:
            self._seen = _Seen(version, now)
        return not spec.get("holderIdentity") or now - self._seen.at_s > float(spec.get("leaseDurationSeconds") or 0)

    def _renewed(self, metadata: Object, spec: Object) -> Object:
        written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_own = spec.get("holderIdentity") == self._holder
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata or {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": math.ceil(self._ttl_s),
                "acquireTime": spec.get("acquireTime", written) if is_own else written,
                "renewTime": written,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (not is_own),
            },
        }

    async def _write(self, method: str, lease: Object) -> bool:
        """Whether it was taken; a try has a third of the duration: one that hangs leaves time for another."""
        path = self._folder if method == "POST" else f"{self._folder}/{self._name}"
        status, written = await self._api.call(method, path, lease, timeout_s=self._ttl_s / 3)
        self._own = None if status in (ABSENT, CONFLICT) else written
        return self._own is not None
