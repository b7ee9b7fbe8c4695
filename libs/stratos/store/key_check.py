"""Checking keys: from a followed snapshot, without a round trip for keys that it knows."""

from __future__ import annotations

import hmac

from stratos.common.errors import DependencyDown, InvalidApiKey
from stratos.core.tenant import Tenant
from stratos.store.keys import KeyRecord, Peppers, key_mac, parse_key
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record

_NOT_NOW = "this API key cannot be checked now, try again shortly"


class KeyCheck:
    """Finds the tenant of a key.

    Args:
        follower: keeps the snapshot.
        peppers: those of all keys that are to work.
    """

    def __init__(self, follower: SnapshotFollower, peppers: Peppers) -> None:
        self._follower = follower
        self._peppers = peppers

    async def authenticate(self, text: str) -> Tenant:
        """The tenant of a key.

        Raises:
            InvalidApiKey: malformed, unknown, revoked, or another secret.
            DependencyDown: the snapshot lacks the key or its tenant and cannot be followed, its pepper is not set here,
                or the snapshot is older than the bound that was set.
        """
        key_id = parse_key(text)
        if self._follower.refuses:
            raise DependencyDown(_NOT_NOW)
        record = self._known(key_id)
        if record is None:
            await self._look_for(key_id)
            record = self._known(key_id)
        key = record.value if record is not None else None
        self._check_secret(text, key if isinstance(key, KeyRecord) else None)
        assert isinstance(key, KeyRecord), "a key without a record has no right secret"
        return await self._tenant(key.tenant)

    def _known(self, key_id: str) -> Record | None:
        return self._follower.snapshot.get(Kind.KEY, key_id)

    async def _look_for(self, key_id: str) -> None:
        if not await self._follower.catch_up() and self._known(key_id) is None:
            raise DependencyDown(_NOT_NOW)
        if (Kind.KEY, key_id) in self._follower.snapshot.malformed:
            raise DependencyDown(_NOT_NOW)

    def _check_secret(self, text: str, key: KeyRecord | None) -> None:
        pepper = self._peppers.get(key.pepper_id) if key is not None else self._peppers.current
        if pepper is None:
            raise DependencyDown(_NOT_NOW)
        mac = key_mac(pepper, text)
        if not hmac.compare_digest(mac, key.mac if key is not None else "0" * len(mac)) or key is None:
            raise InvalidApiKey("the API key is not known")

    async def _tenant(self, name: str) -> Tenant:
        snapshot = self._follower.snapshot
        if snapshot.get(Kind.TENANT, name) is None:
            await self._follower.catch_up()
        record = snapshot.get(Kind.TENANT, name)
        if record is None or not isinstance(record.value, Tenant):
            raise DependencyDown(_NOT_NOW)
        return record.value
