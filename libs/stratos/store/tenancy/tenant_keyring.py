"""Data keys of tenants in the store: made with the tenant, wrapped again for another platform key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.data_keys import BrokenSeal, DataKeyRecord, PlatformKeys
from stratos.store.records.record import Kind, Record
from stratos.store.records.values import encode_data_key
from stratos.store.records.writer import RecordWriter
from stratos.store.tenants import Condition, TenantRef


class TenantKeyring:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        writer: where records are stored, and who changes them.
        platform: wraps the keys.
    """

    def __init__(self, writer: RecordWriter, platform: PlatformKeys) -> None:
        self._writer = writer
        self._platform = platform

    async def make(self, tenant: TenantRef) -> bool:
        """Make the data key of a living tenant; false where there is one, or was one.

        Raises:
            NotFound: the tenant is gone.
        """
        fresh = self._platform.make(tenant.id)

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            return encode_data_key(fresh) if found is None else None

        return await self._writer.change(
            Kind.DATA_KEY, tenant.id, "data-key.make", edit, tenant=tenant, condition=Condition.LIVE
        )

    async def rewrap(self) -> int:
        """Wrap every data key under the current platform key; returns how many were not. May be run again.

        Raises:
            DependencyDown: one is under a platform key that is not set here; those before it are done.
        """
        num = 0
        for record in await self._writer.records.records(Kind.DATA_KEY):
            key = record.value
            if isinstance(key, DataKeyRecord) and key.platform_key_id != self._platform.current_id:
                num += await self._writer.change(Kind.DATA_KEY, record.id, "data-key.rewrap", self._rewrapped)
        await self._writer.records.scrub(Kind.DATA_KEY)
        return num

    def _rewrapped(self, found: Record | None) -> Mapping[str, Any] | None:
        key = found.value if found is not None else None
        if not isinstance(key, DataKeyRecord):
            return None  # its tenant was deleted just now
        try:
            return encode_data_key(self._platform.wrap(key.tenant_id, self._platform.unwrap(key)))
        except BrokenSeal as error:
            raise DependencyDown(f"the data key of tenant {key.tenant_id} cannot be wrapped again: {error}") from None


async def make_if_living(keyring: TenantKeyring | None, tenant: TenantRef) -> None:
    """Make the data key of a tenant that was made just now, where this process has a platform key."""
    if keyring is not None:
        try:
            await keyring.make(tenant)
        except NotFound:
            return
