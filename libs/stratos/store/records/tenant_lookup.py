"""Tenants of a followed snapshot, with the terms of their plans."""

from __future__ import annotations

from stratos.common.errors import DependencyDown, InvalidApiKey, PermissionDenied, StratosError
from stratos.core.tenancy.plan import BUILT_IN_PLANS, Plan
from stratos.core.tenant import Tenant
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.tenants import TenantRecord

NOT_NOW = "this API key cannot be checked now, try again shortly"


class TenantLookup:
    """Finds a tenant by its name.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    async def find(self, name: str) -> Tenant | None:
        """The tenant; ``None`` where there is none of this name.

        Raises:
            PermissionDenied: it is suspended.
            DependencyDown: the snapshot lacks it, or its plan, and cannot be followed, or is older than its bound.
        """
        if self._follower.refuses:
            raise DependencyDown(NOT_NOW)
        record = self._tenant(name)
        plan = self._plan(record) if record is not None else None
        if record is None or plan is None:
            if not await self._follower.catch_up():
                raise DependencyDown(NOT_NOW)
            record = self._tenant(name)
            if record is None:
                return None
            plan = self._plan(record)
            if plan is None:
                raise DependencyDown(NOT_NOW)
        if (error := _suspension(record)) is not None:
            raise error
        return Tenant(name=name, cache_salt=record.cache_salt, plan=record.apply_to(plan))

    def plan_of(self, name: str) -> Plan | None:
        """The plan of a tenant, suspended ones included; ``None`` where the snapshot has none."""
        record = self._tenant(name)
        return None if record is None else self.plan_for(record)

    def plan_for(self, tenant: TenantRecord) -> Plan | None:
        """A tenant's own terms on its plan, as that is now; ``None`` where there is no such plan any more."""
        plan = self._plan(tenant)
        return None if plan is None else tenant.apply_to(plan)

    def refusal(self, name: str) -> StratosError | None:
        """Why what runs for a tenant may not go on: it was suspended or deleted since."""
        record = self._tenant(name)
        return InvalidApiKey("this tenant was deleted") if record is None else _suspension(record)

    def _tenant(self, name: str) -> TenantRecord | None:
        found = self._follower.snapshot.get(Kind.TENANT, name)
        return found.value if found is not None and isinstance(found.value, TenantRecord) else None

    def _plan(self, tenant: TenantRecord) -> Plan | None:
        found = self._follower.snapshot.get(Kind.PLAN, tenant.plan)
        stored = found.value if found is not None else None
        return stored if isinstance(stored, Plan) else BUILT_IN_PLANS.get(tenant.plan)


def _suspension(tenant: TenantRecord) -> PermissionDenied | None:
    return PermissionDenied("this tenant is suspended") if tenant.is_suspended else None
