"""Changes of records by people: each one names who made it, and leaves an entry in the audit log.

A change reads the record, decides what becomes of it, and writes it under the version that it has read; where another
writer was first it starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import DependencyDown
from stratos.store.records.audit import AuditEntry, shown_value
from stratos.store.records.followed_snapshot import Malformed
from stratos.store.records.record import Kind, Record, make_body, version_of
from stratos.store.records.record_store import NO_TENANT, RecordStore, VersionConflict, read_record
from stratos.store.tenants import Condition, TenantRef, tenant_id, unknown_tenant


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A record is deleted; ``remains`` is what stays of it for people."""

    remains: Mapping[str, Any]
    began: int = 0
    """The same as ``began`` of a record."""


Edit = Callable[[Record | None], Mapping[str, Any] | Tombstone | None]
"""The record that is there (``None``: none that can be read) -> its new value, or ``None`` to leave it. May raise."""


class RecordWriter:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        records: where they are stored.
        actor: who makes the changes, for the audit log.
        store_id: the store that is meant; "" takes any that is marked.
        within: the tenant beyond which it writes nothing, and only while that is live; ``None`` is all of the platform.
    """

    def __init__(
        self, records: RecordStore, *, actor: str, store_id: str = "", within: TenantRef | None = None
    ) -> None:
        self.records = records
        self.actor = actor
        self._store_id = store_id
        self._within = within

    async def current(self, kind: Kind, record_id: str) -> Record | None:
        """The record that is there, tombstones included; ``None`` for one that is absent or cannot be read."""
        content = read_record(kind, record_id, await self.records.text_of(kind, record_id) or "")
        return content if isinstance(content, Record) else None

    async def change(
        self,
        kind: Kind,
        record_id: str,
        action: str,
        edit: Edit,
        *,
        tenant: TenantRef = NO_TENANT,
        condition: Condition = Condition.NONE,
        takes_malformed: bool = False,
    ) -> bool:
        """Change one record; false where ``edit`` left it as it was.

        Args:
            kind: of the record.
            record_id: which one.
            action: for the audit log.
            edit: what becomes of it; called again where another writer was first.
            tenant: whose record it is; that of a tenant's own record is read from it.
            condition: on that tenant, looked at in one step with the write.
            takes_malformed: a record that cannot be read may be replaced; ``edit`` then sees none.

        Raises:
            NotFound: the tenant is not as the condition says, or not the one beyond which nothing is written.
            DependencyDown: the record cannot be read, perhaps because a newer build wrote it.
        """
        if self._within is not None:
            if tenant != self._within:
                raise unknown_tenant(tenant.name)
            condition = Condition.LIVE
        while True:
            text = await self.records.text_of(kind, record_id)
            content = None if text is None else read_record(kind, record_id, text)
            if isinstance(content, Malformed) and not takes_malformed:
                raise DependencyDown(f"the record of {kind.value} {record_id!r} cannot be read: {content.reason}")
            edited = edit(content if isinstance(content, Record) else None)
            if edited is None:
                return False
            if isinstance(edited, Tombstone):
                body = make_body(edited.remains, is_deleted=True, began=edited.began)
            else:
                body = make_body(edited)
            if kind is Kind.TENANT:
                tenant = _tenant_of(record_id, edited)
            entry = AuditEntry(
                actor=self.actor, action=action, kind=kind.value, id=record_id, tenant=tenant.name, tenant_id=tenant.id,
                before=shown_value(text), after=shown_value(body),
            )  # fmt: skip
            try:
                await self.records.write(
                    kind, record_id, body, seen=version_of(text), store_id=self._store_id, audit=entry,
                    tenant=tenant, condition=condition,
                )  # fmt: skip
            except VersionConflict:
                continue
            return True


def _tenant_of(name: str, edited: Mapping[str, Any] | Tombstone) -> TenantRef:
    if isinstance(edited, Tombstone):
        return TenantRef(name, str(edited.remains.get("id", "")))
    return TenantRef(name, tenant_id(bytes.fromhex(edited["cache_salt"])))
