"""Lists of the admin API, from the followed snapshot: a list costs what is in it, however much else is stored.

Before each one the store is looked at, so that it has what was written before it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from stratos.common.errors import DependencyDown
from stratos.store.counters.key_use import KeyUse
from stratos.store.key_store import ListedKey, listed_key
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record
from stratos.store.tenants import TenantRecord
from stratos_gateway.admin.views import key_view
from stratos_gateway.http.row_stream import Rows

_PAGE = 128
"""Keys whose last use is read at a time."""


class StoredLists:
    """Every method raises ``DependencyDown`` where the store cannot be followed.

    Args:
        follower: keeps the snapshot.
        key_use: when keys were last used.
    """

    def __init__(self, follower: SnapshotFollower, key_use: KeyUse) -> None:
        self._follower = follower
        self._key_use = key_use

    async def of_kind(self, kind: Kind, view: Callable[[Record], Mapping[str, Any]]) -> Rows:
        """All records of a kind, by id."""
        return _shown((await self.now()).of_kind(kind), view)

    async def keys(self, tenant: str | None = None) -> Rows:
        """All keys, or those of all tenants that ever had a name, by tenant and id."""
        snapshot = await self.now()
        tenants = snapshot.key_tenants() if tenant is None else [tenant]
        return self._rows(listed_key(record) for name in tenants for record in snapshot.keys_of(name))

    async def keys_of(self, tenant: TenantRecord) -> Rows:
        """Keys of one tenant, by id."""
        found = map(listed_key, (await self.now()).keys_of(tenant.name))
        return self._rows(key for key in found if key.is_shown_to(tenant))

    async def tenant_names(self) -> dict[str, str]:
        """Names of all tenants by id."""
        found = (record.value for record in (await self.now()).of_kind(Kind.TENANT))
        return {tenant.id: tenant.name for tenant in found if isinstance(tenant, TenantRecord)}

    async def now(self) -> FollowedSnapshot:
        """All records, as the store has them now."""
        await self._follower.catch_up()
        if not self._follower.is_following:  # else a read of everything just takes its time
            raise DependencyDown("tenants and keys cannot be followed now, try again shortly")
        return self._follower.snapshot

    async def _rows(self, keys: Iterator[ListedKey]) -> Rows:
        while page := list(islice(keys, _PAGE)):
            for key, at in zip(page, await self._key_use.last_uses([k.key_id for k in page]), strict=True):
                yield key_view(key, at)


async def _shown(records: Iterable[Record], view: Callable[[Record], Mapping[str, Any]]) -> Rows:
    for record in records:
        yield view(record)
