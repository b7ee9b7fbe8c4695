"""Tenants of a followed snapshot, with the terms of their plans."""

from __future__ import annotations

from collections.abc import Mapping

from stratos.common.errors import DependencyDown, InvalidApiKey, PermissionDenied, StratosError
from stratos.core.tenancy.plan import BUILT_IN_PLANS, Plan, built_in_plan, reserved_beside
from stratos.core.tenant import Tenant
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, value_as
from stratos.store.tenants import TenantRecord, TenantRef

NOT_NOW = "this API key cannot be checked now, try again shortly"


class TenantLookup:
    """Finds a tenant by its name.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower
        self._reserved: dict[str, Mapping[str, float]] = {}
        """By plan."""
        self._made: dict[str, Tenant] = {}
        """By name."""
        self._names: dict[str, str] | None = None
        """By id, once a tenant was asked for by that."""
        self._num_merged = -1
        """Records merged into the snapshot that all of it was made of."""

    async def find(self, name: str) -> Tenant | None:
        """The tenant; ``None`` where there is none of this name, or it is being deleted.

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
        self._follow()
        if (tenant := self._made.get(name)) is None:
            tenant = self._made[name] = Tenant(
                name=name,
                id=record.id,
                is_namesake=record.is_namesake,
                cache_salt=record.cache_salt,
                plan=record.apply_to(plan),
                kept_kv=self._reserved_beside(plan.name),
            )
        return tenant

    async def find_id(self, tenant_id: str) -> Tenant | None:
        """Like ``find``, by what the tenant is known by for good."""
        for _ in range(2):  # the first look brings a snapshot up to date that lacks it
            found = await self.find(self._name_of(tenant_id))
            if found is not None and found.id == tenant_id:
                return found
        return None

    def record(self, name: str) -> TenantRecord | None:
        """The tenant as it is known, suspended and closing ones included."""
        return value_as(TenantRecord, self._follower.snapshot.get(Kind.TENANT, name))

    def is_another(self, owner: TenantRef) -> bool:
        """The tenant of this name is not that one any more, or not for long; false where none is known."""
        found = self._follower.snapshot.get(Kind.TENANT, owner.name)
        if found is None or found.is_deleted:
            return found is not None
        tenant = found.value
        return isinstance(tenant, TenantRecord) and (tenant.is_closing or not tenant.has_key(owner))

    def plan_for(self, tenant: TenantRecord) -> Plan | None:
        """A tenant's own terms on its plan, as that is now; ``None`` where there is no such plan any more."""
        plan = self._plan(tenant)
        return None if plan is None else tenant.apply_to(plan)

    def refusal(self, tenant: Tenant) -> StratosError | None:
        """Why what runs for a tenant may not go on: it was suspended or deleted since."""
        record = self._tenant(tenant.name)
        return deleted() if record is None or record.id != tenant.id else _suspension(record)

    def _tenant(self, name: str) -> TenantRecord | None:
        record = self.record(name)
        return None if record is None or record.is_closing else record

    def _name_of(self, tenant_id: str) -> str:
        """The name of the tenant with an id; the id where there is none, which is no tenant's name."""
        self._follow()
        if self._names is None:
            tenants = self._follower.snapshot.of_owner(Kind.TENANT, "").values()
            self._names = {one.value.id: one.value.name for one in tenants if isinstance(one.value, TenantRecord)}
        return self._names.get(tenant_id, tenant_id)

    def _reserved_beside(self, plan: str) -> Mapping[str, float]:
        """KV that other plans have reserved."""
        if plan not in self._reserved:
            stored = {name: found.value for name, found in self._follower.snapshot.of_owner(Kind.PLAN, "").items()}
            plans = {**BUILT_IN_PLANS, **{name: value for name, value in stored.items() if isinstance(value, Plan)}}
            self._reserved[plan] = reserved_beside(plan, plans.values())
        return self._reserved[plan]

    def _follow(self) -> None:
        """Forget what was worked out of an earlier state of the snapshot: requests ask it again and again."""
        num_merged = self._follower.snapshot.num_merged
        if num_merged != self._num_merged:
            self._reserved, self._made, self._names, self._num_merged = {}, {}, None, num_merged

    def _plan(self, tenant: TenantRecord) -> Plan | None:
        found = self._follower.snapshot.get(Kind.PLAN, tenant.plan)
        stored = found.value if found is not None else None
        return stored if isinstance(stored, Plan) else built_in_plan(tenant.plan, tenant.built_in_version)


def deleted() -> InvalidApiKey:
    """Its tenant is gone, or going."""
    return InvalidApiKey("this tenant was deleted")


def _suspension(tenant: TenantRecord) -> PermissionDenied | None:
    return PermissionDenied("this tenant is suspended") if tenant.is_suspended else None
