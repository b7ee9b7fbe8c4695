"""Giving a store its id, once; and filling an emptied Redis again. What a person decides, and no process by itself.

A store's id is random and drawn for a new installation alone.  Where the object store's manifest names an id already,
that id is taken over and the adapters are put back from the manifest: the object store has outlived its Redis.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.keys import KeyRecord
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.manifest import IN_MANIFEST, Manifest, ManifestStore
from stratos.store.records.record import Kind, Record, make_body, parse_record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.snapshot_copy import SnapshotCopy
from stratos.store.records.values import owner_and_name
from stratos.store.tenants import TenantRecord, owner_of_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Contents of a store after its adoption."""

    store_id: str
    num_live: Mapping[Kind, int] = field(default_factory=dict)
    num_tombstones: int = 0


async def init_store(records: RecordStore, manifests: ManifestStore) -> str:
    """Set up the store of a new installation; returns its id, which is the old one where there is one.

    Raises:
        DependencyDown: Redis and the object store belong to two different stores.
    """
    await records.check_server()
    marker, manifest = await records.marker(), await manifests.read()
    if marker is not None:
        await manifests.add(marker.store_id, ())
        return marker.store_id
    # The object store learns the id first: if this ends half-way, the next attempt finds the same id.
    manifest = manifest or await manifests.add(secrets.token_hex(16), ())
    await _fill(records, manifest.store_id, manifest.records)
    return manifest.store_id


async def adopt_store(
    records: RecordStore,
    manifests: ManifestStore,
    copies: Sequence[SnapshotCopy] = (),
    *,
    replaces: bool = False,
    fill_ledger: Callable[[str, bool], Awaitable[None]] | None = None,
) -> Adoption:
    """Fill Redis from the manifest and from copies of snapshots, and make it the store that they name.

    Of several versions of a record the newest is taken, and a revoked key stays revoked.  A tenant whose data key was
    destroyed stays deleted, with its keys and all that is named after it, however old the copy is that still has it.

    Args:
        records: the emptied Redis, or a strange one.
        manifests: of the object store.
        copies: exported files, or copies that gateways keep: keys and tenants come from nowhere else.
        replaces: whether another store may be taken out of it.
        fill_ledger: called with the store's id, and whether this Redis is that store already, before gateways write.

    Raises:
        BadRequest: manifest and copies name different stores, or none at all.
        DependencyDown: Redis is marked as another store and ``replaces`` is not set.
    """
    await records.check_server()
    manifest, marker = await manifests.read(), await records.marker()
    store_id = _one_id(manifest, copies)
    if marker is not None and marker.store_id != store_id and not replaces:
        raise DependencyDown(
            f"Redis holds the store {marker.store_id}, manifest and copies are of {store_id}; "
            "--replace makes this Redis the latter one"
        )
    known = [] if manifest is None else manifest.records
    if fill_ledger is not None:
        await fill_ledger(store_id, marker is not None and marker.store_id == store_id)
    newest = _newest(_without_departed([*known, *(record for copy in copies for record in copy.records)]))
    if marker is not None and marker.store_id != store_id:
        await records.clear()  # else its tenants of equal names, being newer, stand in the place of ours
    await _fill(records, store_id, newest, replaces=marker.store_id if marker is not None else "")
    await manifests.add(store_id, [record for record in newest if record.kind in IN_MANIFEST])
    live = Counter(record.kind for record in newest if not record.is_deleted)
    return Adoption(store_id=store_id, num_live=live, num_tombstones=sum(r.is_deleted for r in newest))


async def export_store(records: RecordStore, unix_s: float) -> SnapshotCopy:
    """A copy of all records in Redis; ``unix_s``: now, seconds since the epoch.

    Raises:
        DependencyDown: the store has no marker, or has lost records.
    """
    marker = await records.require_marker()
    found = await records.records(*Kind)
    return SnapshotCopy(store_id=marker.store_id, revision=marker.revision, confirmed_unix_s=unix_s, records=found)


def _one_id(manifest: Manifest | None, copies: Sequence[SnapshotCopy]) -> str:
    ids = {copy.store_id for copy in copies} | ({manifest.store_id} if manifest is not None else set())
    if len(ids) != 1:
        found = f"they name several stores: {', '.join(sorted(ids))}" if ids else "there is no manifest and no copy"
        raise BadRequest(f"it is not clear which store this is: {found}")
    return ids.pop()


def _without_departed(found: Sequence[Record]) -> list[Record]:
    """Records without those of tenants whose data key was destroyed; that their names were taken stays known."""
    departed = {record.id: record.version for record in found if record.kind is Kind.DATA_KEY and record.is_deleted}
    tenants = [record.value for record in found if isinstance(record.value, TenantRecord)]
    gone, living = ({t.name for t in tenants if (t.id in departed) is is_gone} for is_gone in (True, False))
    kept = [
        record
        for record in found
        if record.is_deleted or (_tenant_of(record) not in departed and _owner_of(record) not in gone - living)
    ]
    return kept + [_tombstone(tenant, departed[tenant.id]) for tenant in tenants if tenant.id in departed]


def _tombstone(tenant: TenantRecord, version: int) -> Record:
    """Remains of a deleted tenant, as of the end of its data key: a later tenant of its name stays."""
    return parse_record(Kind.TENANT, tenant.name, f"{version} {make_body({'id': tenant.id}, is_deleted=True)}")


def _owner_of(record: Record) -> str:
    """Name of the tenant that an adapter, a template, rules or a block is of; "" for others, and where all have it."""
    if record.kind is Kind.BLOCK:
        return owner_of_block(record.id)
    return owner_and_name(record.id)[0] if record.kind in (Kind.ADAPTER, Kind.TEMPLATE, Kind.CHOICE) else ""


def _tenant_of(record: Record) -> str:
    """Id of the tenant that a record stands and falls with; "" where its name alone says whose it is."""
    if isinstance(record.value, KeyRecord):
        return record.value.tenant_id
    return record.value.id if isinstance(record.value, TenantRecord) else record.id


def _newest(records: Iterable[Record]) -> list[Record]:
    merged = FollowedSnapshot()
    # Tombstones first: a revoked key stays revoked, even against a higher version.
    for record in sorted(records, key=lambda record: not record.is_deleted):
        merged.merge(record)
    return list(merged.records())


async def _fill(records: RecordStore, store_id: str, found: Iterable[Record], *, replaces: str = "") -> None:
    found = list(found)
    await records.restore(found)
    least = max((record.version for record in found), default=0) + 1
    await records.mark(store_id, replaces=replaces, least_revision=least)
