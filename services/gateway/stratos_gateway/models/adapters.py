"""Adapters that a tenant may use, and what is blocked, from the followed snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratos.common.errors import DependencyDown
from stratos.core.adapter import Adapter
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind
from stratos.store.tenants import BlockRecord, block_id


class AdapterSource(Protocol):
    """Where the gateway looks adapters up."""

    async def find(self, tenant: str, name: str) -> Adapter | None:
        """The adapter that a name stands for; ``None`` where the tenant has none of that name.

        Raises:
            DependencyDown: it is not known, and cannot be looked up now.
        """
        ...

    def list(self, tenant: str) -> Sequence[Adapter]:
        """All adapters that a tenant may use, sorted by name, as far as they are known."""
        ...


class Blocks(Protocol):
    """Models and adapters that are refused for now."""

    def is_model_blocked(self, name: str) -> bool:
        """Whether a base model is, with all its adapters."""
        ...

    def is_adapter_blocked(self, owner: str, name: str) -> bool:
        """Whether an adapter is; ``owner`` is "" for one of all tenants."""
        ...


class NoBlocks(Blocks):
    """Nothing is refused."""

    def is_model_blocked(self, name: str) -> bool:
        """Never."""
        return False

    def is_adapter_blocked(self, owner: str, name: str) -> bool:
        """Never."""
        return False


NO_BLOCKS = NoBlocks()


class SnapshotBlocks(Blocks):
    """Blocks of a followed snapshot.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def is_model_blocked(self, name: str) -> bool:
        """A record that is no tombstone says so."""
        return self._has(block_id(name))

    def is_adapter_blocked(self, owner: str, name: str) -> bool:
        """A record that is no tombstone says so."""
        return self._has(block_id(name, owner))

    def _has(self, record_id: str) -> bool:
        record = self._follower.snapshot.get(Kind.BLOCK, record_id)
        return record is not None and isinstance(record.value, BlockRecord)


class SnapshotAdapters(AdapterSource):
    """Adapters of a followed snapshot; only a name that it lacks costs a look at Redis, shared by all who wait for one.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    async def find(self, tenant: str, name: str) -> Adapter | None:
        """An own adapter hides the one for every tenant."""
        adapter = self._known(tenant, name)
        if adapter is None and not await self._follower.catch_up() and self._known(tenant, name) is None:
            raise DependencyDown("this model name cannot be looked up now, try again shortly")
        return adapter or self._known(tenant, name)

    def list(self, tenant: str) -> Sequence[Adapter]:
        """Without those that are deleted."""
        snapshot = self._follower.snapshot
        records = [*snapshot.of_owner(Kind.ADAPTER, "").values(), *snapshot.of_owner(Kind.ADAPTER, tenant).values()]
        found = {record.value.name: record.value for record in records if isinstance(record.value, Adapter)}
        return [found[name] for name in sorted(found)]

    def _known(self, tenant: str, name: str) -> Adapter | None:
        for owner in (tenant, ""):
            record = self._follower.snapshot.of_owner(Kind.ADAPTER, owner).get(name)
            if record is not None and isinstance(record.value, Adapter):
                return record.value
        return None
