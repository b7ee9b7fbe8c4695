"""Sub-keys of tenants for this process: from the followed snapshot, kept in memory alone."""

from __future__ import annotations

import logging
from collections import OrderedDict

from stratos.store.data_keys import BrokenSeal, DataKeyRecord, PlatformKeys, Purpose, sub_key
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind, Record

_log = logging.getLogger(__name__)
_MAX_KEPT = 4096


class SubKeys:
    """Belongs to the event loop.

    Args:
        follower: keeps the snapshot.
        platform: unwraps data keys; ``None`` has no sub-key of any tenant.
    """

    def __init__(self, follower: SnapshotFollower, platform: PlatformKeys | None) -> None:
        self._follower = follower
        self._platform = platform
        self._kept: OrderedDict[tuple[str, Purpose], tuple[Record, bytes]] = OrderedDict()
        self._said: set[str] = set()
        follower.snapshot.on_record(Kind.DATA_KEY, self._note)

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self._kept)

    def find(self, tenant_id: str, purpose: Purpose) -> bytes | None:
        """The sub-key of a tenant; ``None`` where it has no data key, or none any more, or it cannot be unwrapped."""
        record = self._follower.snapshot.get(Kind.DATA_KEY, tenant_id)
        if record is None or not isinstance(record.value, DataKeyRecord) or self._platform is None:
            self._forget(tenant_id)
            return None
        name = tenant_id, purpose
        known = self._kept.get(name)
        if known is not None and known[0] is record:
            self._kept.move_to_end(name)
            return known[1]
        try:
            key = sub_key(self._platform.unwrap(record.value), purpose)
        except BrokenSeal as error:
            self._say(tenant_id, str(error))
            return None
        self._kept[name] = record, key
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return key

    def _note(self, record: Record) -> None:
        """A data key was made, wrapped again or destroyed: of a deleted tenant no request comes to ask for it."""
        self._forget(record.id)

    def _forget(self, tenant_id: str) -> None:
        for purpose in Purpose:
            self._kept.pop((tenant_id, purpose), None)

    def _say(self, tenant_id: str, problem: str) -> None:
        if tenant_id not in self._said and len(self._said) < _MAX_KEPT:
            self._said.add(tenant_id)
            _log.warning("the data key of tenant %s cannot be used: %s", tenant_id, problem)
