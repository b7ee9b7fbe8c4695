"""Making, changing and deleting plans, tenants and blocks: the side that writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.core.tenancy.plan import BUILT_IN_PLANS, STANDARD, Plan
from stratos.store.keys import KeyRecord, check_tenant
from stratos.store.records.record import Kind, Record
from stratos.store.records.values import (
    encode_block,
    encode_plan,
    encode_tenant,
    owner_and_name,
)
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.tenants import BlockRecord, TenantRecord

_SALT_BYTES = 32


class TenantStore:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        writer: where records are stored, and who changes them.
    """

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

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
        """One tenant; raises ``NotFound``."""
        found = await self._writer.current(Kind.TENANT, name)
        if found is None or not isinstance(found.value, TenantRecord):
            raise _unknown(name)
        return found.value

    async def ensure(self, name: str, plan: str | None = None) -> None:
        """Make a tenant if it is new.

        Raises:
            BadRequest: it has another plan, or there is no such plan.
        """
        check_tenant(name)
        if plan is not None:
            await self._check_plan(plan)

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            tenant = found.value if found is not None else None
            if not isinstance(tenant, TenantRecord):
                return encode_tenant(_fresh(name, plan or STANDARD.name))
            if plan not in (None, tenant.plan):
                text = f"tenant {name!r} has plan {tenant.plan!r}; change it with `stratos tenants set-plan`"
                raise BadRequest(text, param="plan")
            return None

        await self._writer.change(Kind.TENANT, name, "tenant.create", edit, tenant=name)

    async def put(self, name: str, *, plan: str, overrides: Mapping[str, Any], is_suspended: bool) -> bool:
        """Make a tenant, or change it to what is given; false where it is so already. Its salt stays.

        Raises:
            BadRequest: there is no such plan.
        """
        check_tenant(name)
        await self._check_plan(plan)

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            old = found.value if found is not None and isinstance(found.value, TenantRecord) else None
            new = replace(old or _fresh(name, plan), plan=plan, overrides=overrides, is_suspended=is_suspended)
            return None if new == old else encode_tenant(new)

        return await self._writer.change(Kind.TENANT, name, "tenant.put", edit, tenant=name)

    async def set_plan(self, name: str, plan: str) -> None:
        """Change the plan of a tenant's future requests.

        Raises:
            NotFound: no such tenant. BadRequest: no such plan.
        """
        await self._check_plan(plan)
        await self._change(name, "tenant.set-plan", lambda tenant: replace(tenant, plan=plan))

    async def suspend(self, name: str, *, is_suspended: bool) -> None:
        """Refuse a tenant's requests, or take them again; raises ``NotFound``."""
        action = "tenant.suspend" if is_suspended else "tenant.resume"
        await self._change(name, action, lambda tenant: replace(tenant, is_suspended=is_suspended))

    async def delete(self, name: str) -> None:
        """Delete a tenant: its keys first, then its adapters and templates, then its record and the salt of its caches.

        What workers still have of its KV can be hit by no request any more, and is the next to be evicted.

        Raises:
            NotFound: no such tenant.
        """
        await self.get(name)
        for record in await self._writer.records.records(Kind.KEY, Kind.ADAPTER, Kind.TEMPLATE, Kind.BLOCK):
            if record.is_deleted or not _belongs(record, name):
                continue
            await self._bury(record.kind, record.id, name)
        await self._bury(Kind.TENANT, name, name)

    async def block(self, block_id: str, reason: str) -> bool:
        """Refuse a model or adapter; false where it is refused already."""
        block = BlockRecord(reason=reason)
        return await self._writer.change(
            Kind.BLOCK,
            block_id,
            "block.put",
            lambda found: None if found is not None and found.value == block else encode_block(block),
        )

    async def unblock(self, block_id: str) -> None:
        """Serve it again; raises ``NotFound``."""

        def edit(found: Record | None) -> Tombstone:
            if found is None or found.is_deleted:
                raise NotFound("it is not blocked")
            return Tombstone({})

        await self._writer.change(Kind.BLOCK, block_id, "block.delete", edit)

    async def blocks(self) -> dict[str, BlockRecord]:
        """Everything that is blocked, by record id."""
        records = await self._writer.records.records(Kind.BLOCK)
        return {record.id: record.value for record in records if isinstance(record.value, BlockRecord)}

    async def _bury(self, kind: Kind, record_id: str, tenant: str) -> None:
        # A registration of the adapter that began before now must not bring it back.
        began = await self._writer.records.now_us() if kind is Kind.ADAPTER else 0
        await self._writer.change(
            kind,
            record_id,
            f"{kind.value}.delete",
            lambda found: None if is_gone(found) else remains_of(found, began),
            tenant=tenant,
        )

    async def _check_plan(self, plan: str) -> None:
        found = await self._writer.current(Kind.PLAN, plan)
        if plan not in BUILT_IN_PLANS and (found is None or not isinstance(found.value, Plan)):
            raise BadRequest(f"there is no plan {plan[:64]!r}", param="plan")

    async def _change(self, name: str, action: str, change: Callable[[TenantRecord], TenantRecord]) -> None:
        def edit(found: Record | None) -> Mapping[str, Any] | None:
            if found is None or not isinstance(found.value, TenantRecord):
                raise _unknown(name)
            changed = change(found.value)
            return None if changed == found.value else encode_tenant(changed)

        await self._writer.change(Kind.TENANT, name, action, edit, tenant=name)


def _fresh(name: str, plan: str) -> TenantRecord:
    return TenantRecord(name=name, cache_salt=secrets.token_bytes(_SALT_BYTES), plan=plan)


def _belongs(record: Record, tenant: str) -> bool:
    if isinstance(record.value, KeyRecord):
        return record.value.tenant == tenant
    owner = owner_and_name(record.id)[0]
    return owner == tenant if record.kind in (Kind.ADAPTER, Kind.TEMPLATE) else owner == f"adapter:{tenant}"


def is_gone(found: Record | None) -> bool:
    """Whether a record was deleted before."""
    return found is not None and found.is_deleted


def remains_of(found: Record | None, began: int = 0) -> Tombstone:
    """The tombstone of a record; of a key it says for people whose it was."""
    key = found.value if found is not None else None
    remains = {"tenant": key.tenant, "name": key.name} if isinstance(key, KeyRecord) else {}
    return Tombstone(remains, began)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no tenant {name[:64]!r}")
