"""Data keys of tenants at this gateway: every tenant gets one, also those that were made without a platform key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from stratos.common.background import happens
from stratos.common.errors import DependencyDown
from stratos.store.counters.guard import StoreId, known
from stratos.store.data_keys import PlatformKeys
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos.store.tenancy.tenant_keyring import TenantKeyring, make_if_living
from stratos.store.tenants import TenantRecord

_log = logging.getLogger(__name__)
_INTERVAL_S = 5.0


class MissingDataKeys:
    """Makes data keys of tenants that have none: those of an older version, and those of a command without the secret.

    Args:
        records: where they are stored.
        platform: wraps them.
        follower: says who has none.
        living: the tenants that there are now, by id.
        store_id: of the store that takes them.
    """

    def __init__(
        self,
        records: RecordStore,
        platform: PlatformKeys,
        follower: SnapshotFollower,
        living: Callable[[], Mapping[str, TenantRecord]],
        store_id: StoreId,
    ) -> None:
        self._records, self._platform, self._follower, self._living = records, platform, follower, living
        self._store_id = store_id
        self._complete_at = -1
        """Count of the snapshot's changes at which every tenant had a data key."""
        self._is_due = asyncio.Event()
        follower.snapshot.on_record(Kind.TENANT, lambda record: self._is_due.set())

    async def run(self) -> None:
        """Root task."""
        await self._follower.first_look()
        while True:
            self._is_due.clear()
            try:
                await self.fill()
            except (DependencyDown, RedisError) as error:
                _log.debug("missing data keys are made later: %s", error)
            await happens(self._is_due, _INTERVAL_S)

    async def fill(self) -> None:
        """Make those that are missing now; raises ``DependencyDown``."""
        snapshot = self._follower.snapshot
        if not self._follower.is_following or snapshot.num_merged == self._complete_at:
            return
        at = snapshot.num_merged
        missing = [t for t in self._living().values() if snapshot.get(Kind.DATA_KEY, t.id) is None]
        if not missing:
            self._complete_at = at
            return
        writer = RecordWriter(self._records, actor="gateway", store_id=known(self._store_id))
        for tenant in missing:
            await make_if_living(TenantKeyring(writer, self._platform), tenant.ref)
