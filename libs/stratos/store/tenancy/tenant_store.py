"""Making and changing plans, tenants and blocks: the side that writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.plan import BUILT_IN_PLANS, BUILT_IN_VERSION, STANDARD, Plan
from stratos.store.data_keys import PlatformKeys
from stratos.store.keys import check_tenant
from stratos.store.records.record import Kind, Record, value_as
from stratos.store.records.record_store import NO_TENANT
from stratos.store.records.values import encode_block, encode_plan, encode_tenant
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.tenancy.deletion import is_gone
from stratos.store.tenancy.tenant_keyring import TenantKeyring, make_if_living
from stratos.store.tenants import BlockRecord, TenantRecord, TenantRef, owner_of_block, unknown_tenant

_SALT_BYTES = 32


class TenantStore:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        writer: where records are stored, and who changes them.
        platform: wraps the data keys of new tenants; without it a gateway makes them a moment later.
    """

    def __init__(self, writer: RecordWriter, platform: PlatformKeys | None = None) -> None:
        self._writer = writer
        self._keyring = None if platform is None else TenantKeyring(writer, platform)

    async def plans(self) -> dict[str, Plan]:
        """Every plan by name: the built-in ones, and over them those in the store."""
        records = await self._writer.records.records(Kind.PLAN)
        stored = {record.id: record.value for record in records if isinstance(record.value, Plan)}
        return dict(sorted({**BUILT_IN_PLANS, **stored}.items()))

    async def stored_plans(self) -> dict[str, Plan]:
        """The plans that have a record."""
        records = await self._writer.records.records(Kind.PLAN)
        return {record.id: record.value for record in records if isinstance(record.value, Plan)}

    async def put_plan(self, plan: Plan) -> bool:
        """Store a plan; false where it is stored already."""
        return await self._writer.change(
            Kind.PLAN,
            plan.name,
            "plan.put",
            lambda found: None if found is not None and found.value == plan else encode_plan(plan),
        )

    async def delete_plan(self, name: str) -> None:
        """Delete a plan's record; a built-in one is then as it was built.

        Raises:
            NotFound: it has no record. BadRequest: tenants have it.
        """
        if name not in BUILT_IN_PLANS and (users := [t.name for t in await self.list() if t.plan == name]):
            raise BadRequest(f"plan {name!r} is that of {', '.join(users[:5])}", param="plan")

        def edit(found: Record | None) -> Tombstone:
            if found is None or found.is_deleted:
                raise NotFound(f"there is no record of a plan {name[:64]!r}")
            return Tombstone({})

        await self._writer.change(Kind.PLAN, name, "plan.delete", edit)

    async def list(self) -> list[TenantRecord]:
        """All tenants, by name."""
        values = [record.value for record in await self._writer.records.records(Kind.TENANT)]
        return sorted((value for value in values if isinstance(value, TenantRecord)), key=lambda tenant: tenant.name)

    async def get(self, name: str) -> TenantRecord:
        """One tenant, which may be closing; raises ``NotFound``."""
        tenant = value_as(TenantRecord, await self._writer.current(Kind.TENANT, name))
        if tenant is None:
            raise unknown_tenant(name)
        return tenant

    async def ref(self, owner: str) -> TenantRef:
        """The tenant of this name, or none for "", which is all of them; raises ``NotFound``."""
        return (await self.get(owner)).ref if owner else NO_TENANT

    async def ref_or_label(self, owner: str) -> TenantRef:
        """Like ``ref``; the name alone where there is no such tenant any more."""
        try:
            return await self.ref(owner)
        except NotFound:
            return TenantRef(owner, "")

    async def ensure(self, name: str, plan: str | None = None, *, first_plan: str = STANDARD.name) -> TenantRef:
        """Make a tenant if it is new.

        Args:
            name: of the tenant.
            plan: that it has in any case; ``None`` takes what it has.
            first_plan: of a new one, where ``plan`` names none.

        Raises:
            BadRequest: it has another plan, it is being deleted, or there is no such plan.
        """
        check_tenant(name)
        await self._check_plan(plan or first_plan)
        fresh = standing = _fresh(name, plan or first_plan)

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            nonlocal standing
            standing = tenant = _of(found) or replace(fresh, is_namesake=is_gone(found))
            if tenant.id == fresh.id:
                return encode_tenant(tenant)
            if plan not in (None, tenant.plan):
                text = f"tenant {name!r} has plan {tenant.plan!r}; change it with `stratos tenants set-plan`"
                raise BadRequest(text, param="plan")
            return None

        if await self._writer.change(Kind.TENANT, name, "tenant.create", edit):
            await make_if_living(self._keyring, standing.ref)
        return standing.ref

    async def put(self, name: str, *, plan: str, overrides: Mapping[str, Any], is_suspended: bool) -> bool:
        """Make a tenant, or change it to what is given; false where it is so already. Its salt stays.

        A file of tenants says the same plan again and again, so that changes no terms of it; ``set_plan`` does.

        Raises:
            BadRequest: there is no such plan, or the tenant is being deleted.
        """
        check_tenant(name)
        await self._check_plan(plan)
        fresh, is_new = _fresh(name, plan), False

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            nonlocal is_new
            old = _of(found)
            is_new = old is None
            new = replace(
                old or replace(fresh, is_namesake=is_gone(found)), overrides=overrides, is_suspended=is_suspended
            )
            if plan != new.plan:
                new = _given(new, plan)
            return None if new == old else encode_tenant(new)

        is_changed = await self._writer.change(Kind.TENANT, name, "tenant.put", edit)
        if is_changed and is_new:
            await make_if_living(self._keyring, fresh.ref)
        return is_changed

    async def set_plan(self, name: str, plan: str) -> None:
        """Change the plan of a tenant's future requests; a built-in one has its terms of today from then on.

        Raises:
            NotFound: no such tenant. BadRequest: no such plan.
        """
        await self._check_plan(plan)
        await self._change(name, "tenant.set-plan", lambda tenant: _given(tenant, plan))

    async def suspend(self, name: str, *, is_suspended: bool) -> None:
        """Refuse a tenant's requests, or take them again; raises ``NotFound``."""
        action = "tenant.suspend" if is_suspended else "tenant.resume"
        await self._change(name, action, lambda tenant: replace(tenant, is_suspended=is_suspended))

    async def block(self, block_id: str, reason: str) -> bool:
        """Refuse a model or adapter; false where it is refused already.

        Raises:
            NotFound: the adapter's tenant does not exist.
        """
        block, owner = BlockRecord(reason=reason), await self.ref(owner_of_block(block_id))
        return await self._writer.change(
            Kind.BLOCK,
            block_id,
            "block.put",
            lambda found: None if found is not None and found.value == block else encode_block(block),
            tenant=owner,
            condition=owner.while_live,
        )

    async def unblock(self, block_id: str) -> None:
        """Serve it again; raises ``NotFound``."""

        def edit(found: Record | None) -> Tombstone:
            if found is None or found.is_deleted:
                raise NotFound("it is not blocked")
            return Tombstone({})

        owner = await self.ref_or_label(owner_of_block(block_id))
        await self._writer.change(Kind.BLOCK, block_id, "block.delete", edit, tenant=owner)

    async def _check_plan(self, plan: str) -> None:
        found = await self._writer.current(Kind.PLAN, plan)
        if plan not in BUILT_IN_PLANS and (found is None or not isinstance(found.value, Plan)):
            raise BadRequest(f"there is no plan {plan[:64]!r}", param="plan")

    async def _change(self, name: str, action: str, change: Callable[[TenantRecord], TenantRecord]) -> None:
        def edit(found: Record | None) -> Mapping[str, Any] | None:
            tenant = _of(found)
            if tenant is None:
                raise unknown_tenant(name)
            changed = change(tenant)
            return None if changed == tenant else encode_tenant(changed)

        await self._writer.change(Kind.TENANT, name, action, edit)


def _fresh(name: str, plan: str) -> TenantRecord:
    salt = secrets.token_bytes(_SALT_BYTES)
    return TenantRecord(name=name, cache_salt=salt, plan=plan, built_in_version=BUILT_IN_VERSION)


def _given(tenant: TenantRecord, plan: str) -> TenantRecord:
    return replace(tenant, plan=plan, built_in_version=BUILT_IN_VERSION)


def _of(found: Record | None) -> TenantRecord | None:
    """The tenant of a record; raises ``BadRequest`` for one that is being deleted."""
    tenant = value_as(TenantRecord, found)
    if tenant is not None and tenant.is_closing:
        raise BadRequest(f"tenant {tenant.name!r} is being deleted: delete it again, then make it", param="tenant")
    return tenant
