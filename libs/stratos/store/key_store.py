"""Making, rotating, suspending and revoking keys: the side that writes.

A key is never taken out of the store: a revoked one becomes a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stratos.common.errors import BadRequest, NotFound, PermissionDenied
from stratos.core.tenancy.plan import STANDARD
from stratos.store.data_keys import PlatformKeys
from stratos.store.keys import KeyRecord, KeyTerms, Peppers, check_tenant, key_mac, mint_key, parse_key
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import NO_TENANT, RecordStore
from stratos.store.records.values import encode_key
from stratos.store.records.writer import RecordWriter
from stratos.store.tenancy.deletion import is_gone, remains_of
from stratos.store.tenancy.tenant_store import TenantStore
from stratos.store.tenants import Condition, TenantRecord, TenantRef

_REVOKED = "this key was revoked; make another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A key as a list shows it; its text is stored nowhere."""

    key_id: str
    tenant: str
    name: str
    disabled: bool
    """Revoked, for good."""
    tenant_id: str = ""
    record: KeyRecord | None = None
    """``None`` for a revoked one."""

    @property
    def owner(self) -> TenantRef:
        """Name and id, as far as it names one."""
        return TenantRef(self.tenant, self.tenant_id)

    def is_shown_to(self, tenant: TenantRecord) -> bool:
        """Whether it is one of a tenant; a revoked one that names no id may be of an earlier tenant of the name."""
        return tenant.has_key(self.owner) and (not self.disabled or bool(self.tenant_id))


class KeyStore:
    """Every method raises ``DependencyDown`` where Redis, or its marker, is gone.

    Args:
        writer: where keys are stored, and who changes them.
        peppers: the current one hashes new keys.
        platform: wraps the data keys of new tenants; without it a gateway makes them a moment later.
        wall_clock: seconds since the epoch; ``None`` is the store's own.
    """

    def __init__(
        self,
        writer: RecordWriter,
        peppers: Peppers,
        *,
        platform: PlatformKeys | None = None,
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._writer = writer
        self._peppers = peppers
        self._wall_clock = wall_clock
        self.tenants = TenantStore(writer, platform)

    @property
    def _records(self) -> RecordStore:
        return self._writer.records

    async def create_key(
        self,
        tenant: str,
        name: str,
        *,
        plan: str | None = None,
        first_plan: str = STANDARD.name,
        key: str | None = None,
        terms: KeyTerms | None = None,
        makes_tenant: bool = True,
    ) -> str:
        """Store a key, and its tenant if it is new; returns the key's text, which is nowhere else.

        Args:
            tenant: owner.
            name: for people.
            plan: of the tenant; ``None`` takes what it has.
            first_plan: of a new tenant, where ``plan`` names none.
            key: text made earlier by ``mint_key``; storing it again changes nothing.
            terms: what it may do.
            makes_tenant: else the tenant must be there.

        Raises:
            BadRequest: the tenant has another plan, there is no such plan, or the key was revoked.
            NotFound: there is no such tenant, or it was deleted since.
        """
        check_tenant(tenant)
        if key is not None and await self.is_revoked(key):
            raise BadRequest(_REVOKED, param="key")  # before its tenant, which may be deleted, is made again
        made = self.tenants.ensure(tenant, plan, first_plan=first_plan) if makes_tenant else self.tenants.ref(tenant)
        owner = await made
        text = key or mint_key()
        record = self._record(text, owner, name, terms or KeyTerms(), await self.now_s())

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            if found is not None and found.is_deleted:
                raise BadRequest(_REVOKED, param="key")
            return encode_key(record) if found is None else None

        await self._writer.change(Kind.KEY, record.key_id, "key.create", edit, tenant=owner, condition=Condition.LIVE)
        return text

    async def rotate_key(self, key_id: str, *, overlap_s: int) -> str:
        """Make a key that follows another one, which works for ``overlap_s`` seconds more; returns its text.

        The new one may do what the old one may, until the same time, and is suspended where that is.

        Raises:
            NotFound: no such key. BadRequest: it was rotated or suspended before the new one was there, has expired, or
                the overlap is negative.
        """
        if overlap_s < 0:
            raise BadRequest("overlap_s must not be negative", param="overlap_s")
        old = await self.get(key_id)
        if old.successor:
            raise BadRequest(f"key {key_id} was rotated before; its successor is {old.successor}", param="key_id")
        now = await self.now_s()
        if old.terms.expires_unix_s is not None and old.terms.expires_unix_s <= now:
            raise BadRequest(f"key {key_id} has expired; make another one", param="key_id")
        text = mint_key()
        ends = int(now) + overlap_s
        old_ends = min(ends, old.terms.expires_unix_s or ends)
        # The new key first: if this ends half-way there is a key too many, never one too few.
        owner = await self._owner_of(old)
        made = replace(
            self._record(text, owner, old.name, old.terms, now),
            is_suspended=old.is_suspended,
            is_held_by_platform=old.is_held_by_platform,
        )
        await self._writer.change(
            Kind.KEY, made.key_id, "key.rotate", lambda _: encode_key(made), tenant=owner, condition=Condition.LIVE
        )
        await self._change(key_id, "key.rotate", lambda key: _followed(key, made, old_ends))
        return text

    async def suspend_key(self, key_id: str, *, is_suspended: bool, by_platform: bool = True) -> None:
        """Refuse a key for now, or take it again.

        Args:
            key_id: which one.
            is_suspended: refuse it.
            by_platform: not by its tenant.

        Raises:
            NotFound: no such key. PermissionDenied: the platform has suspended it, and its tenant would resume it.
        """
        action = "key.suspend" if is_suspended else "key.resume"

        def change(key: KeyRecord) -> KeyRecord:
            is_held = key.is_suspended and key.is_held_by_platform
            if is_held and not is_suspended and not by_platform:
                raise PermissionDenied(f"key {key_id} was suspended by the platform, which alone resumes it")
            holds = is_suspended and (by_platform or is_held)
            return replace(key, is_suspended=is_suspended, is_held_by_platform=holds)

        await self._change(key_id, action, change)

    async def is_revoked(self, key: str) -> bool:
        """Whether a key has a tombstone."""
        found = await self._writer.current(Kind.KEY, parse_key(key))
        return found is not None and found.is_deleted

    async def revoke_key(self, key_id: str) -> None:
        """Turn a key into a tombstone; gateways refuse it within their poll interval.

        Raises:
            NotFound: no such key.
        """
        if await self._records.text_of(Kind.KEY, key_id) is None:
            raise NotFound(f"there is no API key with id {key_id!r}")
        found = await self._writer.current(Kind.KEY, key_id)
        key = found.value if found is not None else None
        owner = await self._owner_of(key) if isinstance(key, KeyRecord) else NO_TENANT
        await self._writer.change(
            Kind.KEY, key_id, "key.revoke", lambda found: None if is_gone(found) else remains_of(found), tenant=owner,
            takes_malformed=True,
        )  # fmt: skip

    async def get(self, key_id: str) -> KeyRecord:
        """One key; raises ``NotFound``, for a revoked one as well."""
        found = await self._writer.current(Kind.KEY, key_id)
        if found is None or not isinstance(found.value, KeyRecord):
            raise NotFound(f"there is no API key with id {key_id[:40]!r}")
        return found.value

    async def list_keys(self) -> list[ListedKey]:
        """All keys, by tenant and name."""
        found = [listed_key(record) for record in await self._records.records(Kind.KEY)]
        return sorted(found, key=lambda key: (key.tenant, key.name, key.key_id))

    async def _owner_of(self, key: KeyRecord) -> TenantRef:
        """The tenant of a key; of an older one that names no id, the one that has its name, if there is one."""
        return key.owner if key.tenant_id else await self.tenants.ref_or_label(key.tenant)

    async def now_s(self) -> float:
        """Seconds since the epoch by which ends of keys are set."""
        return await self._records.now_us() / 1e6 if self._wall_clock is None else self._wall_clock()

    def _record(self, text: str, owner: TenantRef, name: str, terms: KeyTerms, now_s: float) -> KeyRecord:
        return KeyRecord(
            key_id=parse_key(text),
            name=name,
            tenant=owner.name,
            tenant_id=owner.id,
            mac=key_mac(self._peppers.current, text),
            pepper_id=self._peppers.current_id,
            terms=terms,
            created_unix_s=int(now_s),
        )

    async def _change(self, key_id: str, action: str, change: Callable[[KeyRecord], KeyRecord]) -> None:
        owner = await self._owner_of(await self.get(key_id))

        def edit(found: Record | None) -> Mapping[str, Any] | None:
            if found is None or not isinstance(found.value, KeyRecord):
                raise NotFound(f"there is no API key with id {key_id[:40]!r}")
            changed = change(found.value)
            return None if changed == found.value else encode_key(changed)

        await self._writer.change(Kind.KEY, key_id, action, edit, tenant=owner)


def listed_key(record: Record) -> ListedKey:
    """The record of a key, which may be a tombstone."""
    key = record.value
    if isinstance(key, KeyRecord):
        return ListedKey(
            key_id=record.id, tenant=key.tenant, tenant_id=key.tenant_id, name=key.name, disabled=False, record=key
        )
    tenant, owner_id, name = (str(record.remains.get(field, "")) for field in ("tenant", "tenant_id", "name"))
    return ListedKey(key_id=record.id, tenant=tenant, tenant_id=owner_id, name=name, disabled=True)


def _followed(key: KeyRecord, successor: KeyRecord, ends_unix_s: int) -> KeyRecord:
    """The key that another one follows.

    Raises:
        BadRequest: it was changed since that one was made of it, whose text no one gets then.
    """
    if key.successor or key.is_suspended != successor.is_suspended:
        raise BadRequest(f"key {key.key_id} was changed just now; look at it again", param="key_id")
    return replace(key, terms=replace(key.terms, expires_unix_s=ends_unix_s), successor=successor.key_id)
