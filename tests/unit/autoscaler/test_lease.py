"""The cluster's lease on a virtual clock: calls that hang, and reads that take long."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

from stratos.common.errors import DependencyDown
from stratos_autoscaler.kubernetes.api import ABSENT, TIMEOUT_S, ApiServer, Object
from stratos_autoscaler.kubernetes.lease import ClusterLease
from tests.support.virtual_loop import VirtualLoop, run_virtual

TTL_S = 9.0


class LeaseServer(ApiServer):
    """Has one lease and answers at once, but for calls that are to take long."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.hanging: list[str] = []
        """Methods of the next calls that are never answered, in order."""
        self.read_s = 0.0
        self._versions = itertools.count(1)

    async def call(
        self, method: str, path: str, body: Object | None = None, *, timeout_s: float = TIMEOUT_S, **_: Any
    ) -> tuple[int, Object]:
        if self.hanging[:1] == [method]:
            self.hanging.pop(0)
            await asyncio.sleep(timeout_s)
            raise DependencyDown("no answer")
        if method != "GET":
            self.write(body or {})
        else:
            await asyncio.sleep(self.read_s)
        return (ABSENT, {}) if self.lease is None else (200, copy.deepcopy(self.lease))

    def write(self, lease: Object) -> None:
        """As the API server keeps it, with a version of its own."""
        metadata = {**lease.get("metadata", {}), "resourceVersion": str(next(self._versions))}
        self.lease = {**lease, "metadata": metadata}


def lease_of(api: LeaseServer) -> tuple[ClusterLease, VirtualLoop]:
    """One of this process, and its clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return ClusterLease(api, "stratos", "auto", "me", TTL_S, loop), loop


def test_one_renewal_that_hangs_costs_no_activity() -> None:
    async def main() -> None:
        api = LeaseServer()
        lease, _ = lease_of(api)
        renewing = asyncio.create_task(lease.run())
        await asyncio.sleep(4)
        api.hanging = ["PUT"]
        for _ in range(40):
            await asyncio.sleep(0.25)
            assert lease.is_ours()
        assert api.hanging == []
        renewing.cancel()

    run_virtual(main())


def test_a_read_that_hangs_leaves_time_for_another() -> None:
    async def main() -> None:
        api = LeaseServer()
        lease, _ = lease_of(api)
        api.hanging = ["GET"]
        renewing = asyncio.create_task(lease.run())
        await asyncio.sleep(TTL_S / 3 + 0.5)
        assert lease.is_ours()
        renewing.cancel()

    run_virtual(main())


def test_a_standby_counts_from_when_it_had_read() -> None:
    async def main() -> None:
        api = LeaseServer()
        api.write({"spec": {"holderIdentity": "another", "leaseDurationSeconds": TTL_S}})
        lease, loop = lease_of(api)
        api.read_s = 2.0
        await lease.renew()
        api.read_s = 0.0
        loop.jump(TTL_S - 1)
        await lease.renew()
        assert not lease.is_ours(), "ten seconds after the read began, eight after it ended"
        loop.jump(1.5)
        await lease.renew()
        assert lease.is_ours()

    run_virtual(main())


def test_its_duration_is_never_shorter_than_ours() -> None:
    async def main() -> None:
        api = LeaseServer()
        await ClusterLease(api, "stratos", "auto", "me", 9.4, lease_of(api)[1]).renew()
        assert (api.lease or {})["spec"]["leaseDurationSeconds"] == 10

    run_virtual(main())
