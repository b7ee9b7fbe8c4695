"""Deletion of a tenant that its own keys cannot race.

1. A closing mark on its record: from here on its keys are refused, and the store refuses every write for it, in one
   step with the write (``tenants.Condition``).
2. What belongs to it is listed and buried until nothing is left; what was written before the mark is in a list.
3. Its data key is destroyed: its record becomes a tombstone, and the changes lose its older versions.
4. Its own record becomes a tombstone, and with it go the salt of its caches and its id.

A deletion that ends half-way is begun again; of two at a time each one ends what the other one has begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stratos.common.errors import NotFound
from stratos.store.keys import KeyRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.values import encode_tenant, owner_and_name
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.tenants import Condition, TenantRecord, TenantRef, owner_of_block, unknown_tenant


async def delete_tenant(writer: RecordWriter, name: str) -> TenantRef:
    """Delete a tenant: its keys, its adapters' names, templates and blocks, then its record.

    What workers still have of its KV can be hit by no request any more, and is the next to be evicted.

    Args:
        writer: where records are stored, and who deletes.
        name: of the tenant.

    Returns:
        Which one it was: its ledger goes by this id.

    Raises:
        NotFound: no such tenant.
        DependencyDown: Redis does not answer; it may be closing.
    """
    tenant = await _close(writer, name)
    try:
        while belongings := await _belongings(writer, tenant):
            for record in belongings:
                await _bury(writer, record.kind, record.id, tenant.ref)
        await _bury(writer, Kind.DATA_KEY, tenant.id, tenant.ref)
        await writer.records.scrub(Kind.DATA_KEY, tenant.id)
    except NotFound:
        return tenant.ref  # another deletion was quicker
    await writer.change(Kind.TENANT, name, "tenant.delete", lambda found: _remains(found, tenant))
    return tenant.ref


async def _close(writer: RecordWriter, name: str) -> TenantRecord:
    closing: TenantRecord | None = None

    def edit(found: Record | None) -> Mapping[str, Any] | None:
        nonlocal closing
        if found is None or not isinstance(found.value, TenantRecord):
            raise unknown_tenant(name)
        closing = replace(found.value, is_closing=True)
        return None if found.value.is_closing else encode_tenant(closing)

    await writer.change(Kind.TENANT, name, "tenant.close", edit)
    assert closing is not None, "the edit has run"
    return closing


async def _belongings(writer: RecordWriter, tenant: TenantRecord) -> list[Record]:
    found = await writer.records.records(Kind.KEY, Kind.CHOICE, Kind.ADAPTER, Kind.TEMPLATE, Kind.BLOCK)
    return [record for record in found if not record.is_deleted and _belongs(record, tenant)]


def _belongs(record: Record, tenant: TenantRecord) -> bool:
    if isinstance(record.value, KeyRecord):
        # One of an earlier tenant of the name works nowhere; it goes with this one.
        return record.value.tenant == tenant.name
    if record.kind is Kind.BLOCK:
        return owner_of_block(record.id) == tenant.name
    return owner_and_name(record.id)[0] == tenant.name


async def _bury(writer: RecordWriter, kind: Kind, record_id: str, tenant: TenantRef) -> None:
    # A registration of the adapter that began before now must not bring it back.
    began = await writer.records.now_us() if kind is Kind.ADAPTER else 0
    await writer.change(
        kind,
        record_id,
        f"{kind.value.replace('_', '-')}.delete",
        lambda found: None if is_gone(found) else remains_of(found, began),
        tenant=tenant,
        condition=Condition.SAME,
    )


def _remains(found: Record | None, tenant: TenantRecord) -> Tombstone | None:
    is_same = found is not None and isinstance(found.value, TenantRecord) and found.value.id == tenant.id
    return Tombstone({"id": tenant.id}) if is_same else None


def is_gone(found: Record | None) -> bool:
    """Whether a record was deleted before."""
    return found is not None and found.is_deleted


def remains_of(found: Record | None, began: int = 0) -> Tombstone:
    """The tombstone of a record; of a key it says whose it was."""
    key = found.value if found is not None else None
    if not isinstance(key, KeyRecord):
        return Tombstone({}, began)
    return Tombstone({"tenant": key.tenant, "tenant_id": key.tenant_id, "name": key.name}, began)
