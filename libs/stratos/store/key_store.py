"""Making, revoking and listing keys, and the class of a tenant: the side that writes.

Every write names the version of the record that it has seen, so of two writers one is told that it came second and
looks again.  A key is never taken out of the store: a revoked one becomes a tombstone.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from stratos.common.errors import BadRequest, NotFound
from stratos.core.requests.limits import DEFAULT_PRIORITY_CLASS
from stratos.core.tenant import Tenant
from stratos.store.keys import KeyRecord, Peppers, check_priority_class, check_tenant, key_mac, mint_key, parse_key
from stratos.store.records.followed_snapshot import Malformed
from stratos.store.records.record import Kind, Record, make_body, version_of
from stratos.store.records.record_store import RecordStore, VersionConflict, read_record
from stratos.store.records.values import encode_key, encode_tenant

_SALT_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A key as a list shows it; its text is stored nowhere."""

    key_id: str
    tenant: str
    name: str
    disabled: bool


class KeyStore:
    """Writes keys and tenants; every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        records: where they are stored.
        peppers: the current one hashes new keys.
        store_id: the store that is meant; "" takes any that is marked.
    """

    def __init__(self, records: RecordStore, peppers: Peppers, *, store_id: str = "") -> None:
        self._records = records
        self._peppers = peppers
        self._store_id = store_id

    async def create_key(
        self, tenant: str, name: str, *, priority_class: int | None = None, key: str | None = None
    ) -> str:
        """Store a key, and its tenant if it is new; returns the key's text, which is nowhere else.

        Args:
            tenant: owner.
            name: for people.
            priority_class: of a new tenant; ``None`` takes the default, or what the tenant has.
            key: text made earlier by ``mint_key``; storing it again changes nothing.

        Raises:
            BadRequest: the tenant exists in another class, or the key was revoked.
        """
        check_tenant(tenant)
        await self._ensure_tenant(tenant, priority_class)
        key = key or mint_key()
        key_id = parse_key(key)
        record = KeyRecord(
            key_id=key_id,
            name=name,
            tenant=tenant,
            mac=key_mac(self._peppers.current, key),
            pepper_id=self._peppers.current_id,
        )
        try:
            await self._write(Kind.KEY, key_id, make_body(encode_key(record)), seen=0)
        except VersionConflict:
            if await self.is_revoked(key):
                raise BadRequest("this key was revoked; make another one", param="key") from None
        return key

    async def is_revoked(self, key: str) -> bool:
        """Whether a key has a tombstone."""
        key_id = parse_key(key)
        text = await self._records.text_of(Kind.KEY, key_id)
        content = read_record(Kind.KEY, key_id, text or "")
        return isinstance(content, Record) and content.is_deleted

    async def revoke_key(self, key_id: str) -> None:
        """Turn a key into a tombstone; gateways refuse it within their poll interval.

        Raises:
            NotFound: no such key.
        """
        while True:
            text = await self._records.text_of(Kind.KEY, key_id)
            if text is None:
                raise NotFound(f"there is no API key with id {key_id!r}")
            content = read_record(Kind.KEY, key_id, text)
            key = content.value if isinstance(content, Record) else None
            if isinstance(content, Record) and content.is_deleted:
                return
            value = {"tenant": key.tenant, "name": key.name} if isinstance(key, KeyRecord) else {}
            try:
                await self._write(Kind.KEY, key_id, make_body(value, is_deleted=True), seen=version_of(text))
            except VersionConflict:
                continue
            return

    async def list_keys(self) -> list[ListedKey]:
        """All keys, by tenant and name."""
        found = [_listed(record) for record in await self._records.records(Kind.KEY)]
        return sorted(found, key=lambda key: (key.tenant, key.name, key.key_id))

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, by name."""
        values = [record.value for record in await self._records.records(Kind.TENANT)]
        return sorted((value for value in values if isinstance(value, Tenant)), key=lambda tenant: tenant.name)

    async def set_class(self, tenant: str, priority_class: int) -> None:
        """Change the class of a tenant's future requests.

        Raises:
            NotFound: no such tenant. BadRequest: no such class.
        """
        check_priority_class(priority_class)
        while True:
            text = await self._records.text_of(Kind.TENANT, tenant)
            content = read_record(Kind.TENANT, tenant, text or "")
            if isinstance(content, Malformed) or not isinstance(content.value, Tenant):
                raise NotFound(f"there is no tenant {tenant!r}")
            changed = Tenant(name=tenant, cache_salt=content.value.cache_salt, priority_class=priority_class)
            try:
                await self._write(Kind.TENANT, tenant, make_body(encode_tenant(changed)), seen=content.version)
            except VersionConflict:
                continue
            return

    async def _ensure_tenant(self, name: str, priority_class: int | None) -> None:
        wanted = DEFAULT_PRIORITY_CLASS if priority_class is None else check_priority_class(priority_class)
        made = Tenant(name=name, cache_salt=secrets.token_bytes(_SALT_BYTES), priority_class=wanted)
        try:
            await self._write(Kind.TENANT, name, make_body(encode_tenant(made)), seen=0)
        except VersionConflict:
            text = await self._records.text_of(Kind.TENANT, name)
            content = read_record(Kind.TENANT, name, text or "")
            found = content.value if isinstance(content, Record) else None
            if priority_class is not None and isinstance(found, Tenant) and found.priority_class != priority_class:
                raise BadRequest(
                    f"tenant {name!r} has class {found.priority_class}; change it with `stratos tenants set-class`",
                    param="priority_class",
                ) from None

    async def _write(self, kind: Kind, record_id: str, body: str, *, seen: int) -> None:
        await self._records.write(kind, record_id, body, seen=seen, store_id=self._store_id)


def _listed(record: Record) -> ListedKey:
    key = record.value
    if isinstance(key, KeyRecord):
        return ListedKey(key_id=record.id, tenant=key.tenant, name=key.name, disabled=False)
    remains = record.remains
    tenant, name = str(remains.get("tenant", "")), str(remains.get("name", ""))
    return ListedKey(key_id=record.id, tenant=tenant, name=name, disabled=True)
