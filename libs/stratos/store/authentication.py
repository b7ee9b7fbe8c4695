"""Checking keys: from a followed snapshot, without a round trip for keys that it knows."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

from stratos.common.errors import DependencyDown, InvalidApiKey, StratosError
from stratos.core.tenant import Tenant
from stratos.store.keys import KeyRecord, Peppers, key_mac, parse_key
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record
from stratos.store.records.tenant_lookup import NOT_NOW, TenantLookup, deleted

_MAX_ACCEPTED = 4096
"""Keys whose tenants are remembered; beyond that all are looked up again."""


class KeyCheck:
    """Finds the tenant of a key.

    Args:
        follower: keeps the snapshot.
        peppers: those of all keys that are to work.
        note_use: told the id of each key that was accepted.
        wall_clock: seconds since the epoch, for keys that expire; ``None`` is the store's own.
    """

    def __init__(
        self,
        follower: SnapshotFollower,
        peppers: Peppers,
        *,
        note_use: Callable[[str], None] = lambda key_id: None,
        wall_clock: Callable[[], float] | None = None,
    ) -> None:
        self._follower = follower
        self._tenants = TenantLookup(follower)
        self._peppers = peppers
        self._note_use = note_use
        self._wall_clock = wall_clock or follower.unix_s
        self._accepted: dict[bytes, Tenant] = {}
        """Tenants as keys have shown them, by the SHA-256 of the key, which no log and no dump should have."""
        self._accepted_at = (-1, -1)
        """Version of the snapshot of which they are made."""

    async def authenticate(self, text: str) -> Tenant:
        """The tenant of a key.

        Raises:
            InvalidApiKey: malformed, unknown, revoked, suspended, expired, another secret, or of a deleted tenant.
            PermissionDenied: its tenant is suspended.
            DependencyDown: the snapshot lacks the key or its tenant and cannot be followed, its pepper is not set here,
                or the snapshot is older than the bound that was set.
        """
        digest, version = hashlib.sha256(text.encode()).digest(), self._follower.snapshot.version
        if version != self._accepted_at or len(self._accepted) >= _MAX_ACCEPTED:
            self._accepted, self._accepted_at = {}, version
        if (known := self._accepted.get(digest)) is None or self._follower.refuses or self._has_expired(known):
            return await self._check(text, digest)
        self._note_use(known.key_id)
        return known

    async def _check(self, text: str, digest: bytes) -> Tenant:
        """The tenant of a key, whatever is known of it from before."""
        key_id = parse_key(text)
        if self._follower.refuses:
            raise DependencyDown(NOT_NOW)
        record = self._known(key_id)
        if record is None:
            await self._look_for(key_id)
            record = self._known(key_id)
        version = self._follower.snapshot.version
        key = record.value if record is not None else None
        self._check_secret(text, key if isinstance(key, KeyRecord) else None)
        assert isinstance(key, KeyRecord), "a key without a record has no right secret"
        self._check_state(key)
        tenant = await self._find_tenant(key)
        self._note_use(key_id)
        terms = key.terms
        shown = replace(
            tenant, key_id=key_id, role=terms.role, models=terms.models, networks=terms.networks,
            expires_unix_s=terms.expires_unix_s,
        )  # fmt: skip
        # Its tenant may have been waited for, and the key revoked since; another key's check has followed that.
        if version == self._follower.snapshot.version == self._accepted_at:
            self._accepted[digest] = shown
        return shown

    def _has_expired(self, tenant: Tenant) -> bool:
        return tenant.expires_unix_s is not None and self._wall_clock() >= tenant.expires_unix_s

    async def recall(self, name: str, tenant_id: str, key_id: str) -> Tenant:
        """The tenant that asked for something earlier, as its key shows it now.

        A key that has expired since ends nothing.

        Raises:
            InvalidApiKey: the key was revoked or suspended, or the tenant deleted.
            PermissionDenied: the tenant is suspended.
            DependencyDown: the snapshot lacks the tenant and cannot be followed.
        """
        tenant = await self._tenants.find(name)
        if tenant is None or tenant.id != tenant_id:
            raise deleted()
        tenant = replace(tenant, key_id=key_id)
        if (error := self.refusal(tenant)) is not None:
            raise error
        record = self._known(key_id)
        if record is None or not isinstance(record.value, KeyRecord):
            return tenant
        return replace(tenant, role=record.value.terms.role, models=record.value.terms.models)

    def refusal(self, tenant: Tenant) -> StratosError | None:
        """Why what runs with a key may not go on: it, or its tenant, was suspended, revoked or deleted since.

        A key that expires ends no request, and so does one that an answer of the store lacks.
        """
        record = self._known(tenant.key_id)
        if record is not None and record.is_deleted:
            return InvalidApiKey("this API key was revoked")
        if record is not None and isinstance(record.value, KeyRecord) and record.value.is_suspended:
            return _suspended()
        return self._tenants.refusal(tenant)

    async def _find_tenant(self, key: KeyRecord) -> Tenant:
        """The tenant of a key, and not another one of its name."""
        if self._tenants.is_another(key.owner):
            # Of the key and its tenant one may be older than the other: a tenant of the name was made just now.
            await self._follower.catch_up()
        if self._tenants.is_another(key.owner):
            raise deleted()
        tenant = await self._tenants.find(key.tenant)
        # That may have been a look at the store, which knew better.
        if (tenant is None or tenant.id != key.tenant_id) and self._tenants.is_another(key.owner):
            raise deleted()
        if tenant is None:
            raise DependencyDown(NOT_NOW)
        return tenant

    def _known(self, key_id: str) -> Record | None:
        return self._follower.snapshot.get(Kind.KEY, key_id)

    async def _look_for(self, key_id: str) -> None:
        if not await self._follower.catch_up() and self._known(key_id) is None:
            raise DependencyDown(NOT_NOW)
        if (Kind.KEY, key_id) in self._follower.snapshot.malformed:
            raise DependencyDown(NOT_NOW)

    def _check_secret(self, text: str, key: KeyRecord | None) -> None:
        pepper = self._peppers.get(key.pepper_id) if key is not None else self._peppers.current
        if pepper is None:
            raise DependencyDown(NOT_NOW)
        mac = key_mac(pepper, text)
        if not hmac.compare_digest(mac, key.mac if key is not None else "0" * len(mac)) or key is None:
            raise InvalidApiKey("the API key is not known")

    def _check_state(self, key: KeyRecord) -> None:
        """Only who has the secret learns more than that it does not work."""
        if key.is_suspended:
            raise _suspended()
        if key.terms.expires_unix_s is not None and self._wall_clock() >= key.terms.expires_unix_s:
            raise InvalidApiKey("this API key has expired")


def _suspended() -> InvalidApiKey:
    return InvalidApiKey("this API key is suspended")
