"""Drops caches of deleted tenants: their KV blocks at all workers, their answers here and in Redis, their receipts.

Every gateway sees each deletion in its followed snapshot, so it is enough that one of them lives.  A moment later, when
the tenant's requests have ended everywhere, a router is asked to tell all workers, and the store is, each again and
again until it has answered.  All of them know it by its id: the next tenant of its name loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, StratosError
from stratos.core.tenancy.plan import Plan
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record
from stratos.store.records.tenant_lookup import TenantLookup
from stratos.store.tenants import TenantRecord

_log = logging.getLogger(__name__)
MAX_REMEMBERED = 1000
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0)
"""Pauses before another try; a worker that is silent for longer keeps blocks that no request can hit."""
Forget = Callable[[str], Awaitable[bool | None]]
"""Drops what one place keeps of a tenant; false where not all of it answered. Raises ``StratosError``."""


def living_tenants(follower: SnapshotFollower) -> dict[str, TenantRecord]:
    """The tenants that there are now by id, suspended ones included and closing ones not."""
    found = map(_living, follower.snapshot.of_owner(Kind.TENANT, "").values())
    return {tenant.id: tenant for tenant in found if tenant is not None}


def _living(record: Record) -> TenantRecord | None:
    """The tenant of a record, if there is one that is not being deleted."""
    tenant = record.value
    return tenant if isinstance(tenant, TenantRecord) and not tenant.is_closing else None


class DepartedTenants:
    """Belongs to the event loop.

    Args:
        snapshot: of the process; its changes are followed one by one, however many tenants there are.
        forget: each is asked by itself, so that one that is away keeps none from dropping its own.
        settle_s: after this the requests of a deleted tenant have ended.
    """

    def __init__(
        self,
        snapshot: FollowedSnapshot,
        forget: Sequence[Forget],
        settle_s: float,
    ) -> None:
        self._forget = forget
        self._settle_s = settle_s
        self._named: dict[str, TenantRecord] = {}
        self._known: dict[str, TenantRecord] = {}
        """The same tenants by id."""
        self._last: OrderedDict[str, TenantRecord] = OrderedDict()
        self._departed: asyncio.Queue[str] = asyncio.Queue()
        self._listeners: list[Callable[[str], None]] = []
        for record in snapshot.of_kind(Kind.TENANT):  # of a restored copy: some may be gone from the store by now
            self._note(record)
        snapshot.on_record(Kind.TENANT, self._note)

    def on_departure(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the id of each tenant that is no more, once its requests have ended."""
        self._listeners.append(listener)

    def _note(self, record: Record) -> None:
        """A tenant's record has changed."""
        before, now = self._named.pop(record.id, None), _living(record)
        if before is not None and (now is None or now.id != before.id):
            self._known.pop(before.id, None)
            self._last[before.id] = before
            self._departed.put_nowait(before.id)
            while len(self._last) > MAX_REMEMBERED:
                self._last.popitem(last=False)
        if now is not None:
            self._named[record.id] = self._known[now.id] = now

    def last_record(self, tenant_id: str) -> TenantRecord | None:
        """The last record of a tenant, living or not, by which its debts are priced."""
        return self._known.get(tenant_id) or self._last.get(tenant_id)

    def name_of(self, tenant_id: str) -> str | None:
        """The name of a tenant that there is now."""
        found = self._known.get(tenant_id)
        return None if found is None else found.name

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
        left = self._forget
        for pause_s in (0.0, *RETRY_S):
            await asyncio.sleep(pause_s)
            have_dropped = await asyncio.gather(*(_has_dropped(forget, tenant) for forget in left))
            left = [forget for forget, is_done in zip(left, have_dropped, strict=True) if not is_done]
            if not left:
                return
        _log.warning("some places did not drop what they keep of deleted tenant %s: it is evicted with time", tenant)


async def _has_dropped(forget: Forget, tenant: str) -> bool:
    try:
        return await forget(tenant) is not False
    except (StratosError, RedisError) as error:
        _log.debug("a deleted tenant is forgotten later: %s", error)
        return False


def plan_of(follower: SnapshotFollower, departed: DepartedTenants, tenant: str) -> Plan | None:
    """The plan of a tenant by its id; of a deleted one it is the last one, for counts that come late.

    Counts of workers that were asked by an older gateway name the tenant instead.

    Raises:
        DependencyDown: no tenant is known yet.
    """
    if not follower.snapshot.is_complete:
        raise DependencyDown("tenants were not loaded yet")
    tenants = TenantLookup(follower)
    found = departed.last_record(tenant) or tenants.record(tenant)
    return None if found is None else tenants.plan_for(found)
