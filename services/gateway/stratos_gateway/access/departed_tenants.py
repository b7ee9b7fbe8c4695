"""Drops caches of deleted tenants: their KV blocks at all workers, their answers in this gateway.

Every gateway sees each deletion in its followed snapshot, so it is enough that one of them lives.  A moment later, when
the tenant's requests have ended everywhere, a router is asked to tell all workers, again and again until each of them
has answered.  All of them know it by its id: the next tenant of its name loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from stratos.common.errors import StratosError
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.tenants import TenantRecord

_log = logging.getLogger(__name__)
MAX_REMEMBERED = 1000
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0)
"""Pauses before another try; a worker that is silent for longer keeps blocks that no request can hit."""


def living_tenants(follower: SnapshotFollower) -> dict[str, TenantRecord]:
    """The tenants that there are now by id, suspended ones included and closing ones not."""
    found = (record.value for record in follower.snapshot.of_owner(Kind.TENANT, "").values())
    return {tenant.id: tenant for tenant in found if isinstance(tenant, TenantRecord) and not tenant.is_closing}


class DepartedTenants:
    """Belongs to the event loop.

    Args:
        living: the tenants that there are now, by id.
        forget: has all workers drop a tenant's blocks; false where one did not answer. Raises ``StratosError``.
        settle_s: after this the requests of a deleted tenant have ended.
    """

    def __init__(
        self,
        living: Callable[[], Mapping[str, TenantRecord]],
        forget: Callable[[str], Awaitable[bool]],
        settle_s: float,
    ) -> None:
        self._living = living
        self._forget = forget
        self._settle_s = settle_s
        self._known: Mapping[str, TenantRecord] = {}
        self._last: OrderedDict[str, TenantRecord] = OrderedDict()
        self._departed: asyncio.Queue[str] = asyncio.Queue()
        self._listeners: list[Callable[[str], None]] = []

    def on_departure(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the id of each tenant that is no more, once its requests have ended."""
        self._listeners.append(listener)

    def look(self) -> None:
        """The snapshot has changed."""
        now = self._living()
        for tenant_id, tenant in self._known.items():
            if tenant_id not in now:
                self._last[tenant_id] = tenant
                self._departed.put_nowait(tenant_id)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        self._known = now

    def last_record(self, tenant_id: str) -> TenantRecord | None:
        """The last record of a tenant, living or not, by which its debts are priced."""
        return self._known.get(tenant_id) or self._last.get(tenant_id)

    async def run(self) -> None:
        """Root task."""
        async with asyncio.TaskGroup() as group:
            while True:
                tenant = await self._departed.get()
                group.create_task(self._drop(tenant), name="forget a tenant")

    async def _drop(self, tenant: str) -> None:
        await asyncio.sleep(self._settle_s)
        for listener in self._listeners:
            listener(tenant)
        for pause_s in (*RETRY_S, None):
            try:
                if await self._forget(tenant):
                    return
            except StratosError as error:
                _log.debug("no router forgets a deleted tenant: %s", error.message)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        _log.warning("some workers did not drop the cache of deleted tenant %s: it is evicted with time", tenant)
