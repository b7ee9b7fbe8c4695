"""The manifest in the object store: the store's id and the records of adapters and models, to fill Redis from it.

One object, ``catalogue/manifest.json``: {"format", "store_id", "adapters": {record id: text of the record}, "models":
the same, "departed": {tenant id: tombstone of its data key}}: a backup from before a tenant's deletion must not bring
it back.  Records are merged by version, so two writers may add to it at a time; what one of them overwrites, the next
check brings back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.object_store import ObjectStore
from stratos.store.records.followed_snapshot import Malformed
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import read_record

MANIFEST_KEY = "catalogue/manifest.json"
IN_MANIFEST = (Kind.ADAPTER, Kind.MODEL, Kind.DATA_KEY)
"""Kinds of records that it may hold."""
_FORMAT = 1
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Records as the object store knows them."""

    store_id: str
    adapters: Mapping[str, Record]
    """By record id, tombstones included."""
    departed: Mapping[str, Record] = field(default_factory=dict)
    """Tombstones of data keys, by the id of the deleted tenant."""
    models: Mapping[str, Record] = field(default_factory=dict)
    """By record id, tombstones included."""
    has_grown: bool = field(default=False, compare=False)
    """It was put just now: an older one whose put is late may still take its place."""

    @property
    def records(self) -> list[Record]:
        """All of them."""
        return [*self.adapters.values(), *self.models.values(), *self.departed.values()]


class ManifestStore:
    """Reads and extends the manifest; every method raises ``DependencyDown`` when the object store does not answer.

    Args:
        objects: where it lies.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = asyncio.Lock()

    async def read(self) -> Manifest | None:
        """The manifest; ``None`` where there is none.

        Raises:
            DependencyDown: it cannot be read, which must not look like an object store without one.
        """
        try:
            content = await self._objects.read(MANIFEST_KEY, 0, _MAX_BYTES + 1)
        except NotFound:
            return None
        if len(content) > _MAX_BYTES:
            raise DependencyDown(f"the manifest {MANIFEST_KEY} in the object store has more than {_MAX_BYTES} bytes")
        return await asyncio.to_thread(_parse, content)

    async def add(self, store_id: str, records: Iterable[Record]) -> Manifest:
        """Put records into the manifest where they are newer, of data keys the destroyed; make it where there is none.

        Raises:
            DependencyDown: the object store belongs to another store.
        """
        async with self._lock:
            old = await self.read()
            if old is not None and old.store_id != store_id:
                raise DependencyDown(
                    "the object store's manifest names another store than Redis; `stratos admin adopt-store` decides"
                )
            parts: dict[Kind, dict[str, Record]] = {kind: {} for kind in IN_MANIFEST}
            for record in [] if old is None else old.records:
                parts[record.kind][record.id] = record
            num_new = 0
            for record in records:
                if record.kind is Kind.DATA_KEY and not record.is_deleted:
                    continue
                part = parts[record.kind]
                if record.id not in part or record.version > part[record.id].version:
                    part[record.id] = record
                    num_new += 1
            manifest = Manifest(
                store_id=store_id,
                adapters=parts[Kind.ADAPTER],
                departed=parts[Kind.DATA_KEY],
                models=parts[Kind.MODEL],
                has_grown=old is None or num_new > 0,
            )
            if manifest.has_grown:
                await self._put(manifest)
            return manifest

    async def _put(self, manifest: Manifest) -> None:
        content = {
            "format": _FORMAT,
            "store_id": manifest.store_id,
            "adapters": {record_id: record.text for record_id, record in manifest.adapters.items()},
            "models": {record_id: record.text for record_id, record in manifest.models.items()},
            "departed": {tenant_id: record.text for tenant_id, record in manifest.departed.items()},
        }
        await self._objects.put(MANIFEST_KEY, await asyncio.to_thread(lambda: json.dumps(content).encode()))


def _parse(content: bytes) -> Manifest:
    try:
        found = json.loads(content)
        if found["format"] != _FORMAT:
            raise ValueError("another format")
        store_id, texts, departed = str(found["store_id"]), dict(found["adapters"]), dict(found.get("departed", {}))
        models = dict(found.get("models", {}))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DependencyDown(f"the manifest {MANIFEST_KEY} in the object store cannot be read: {error}") from None
    return Manifest(
        store_id=store_id,
        adapters=_readable(Kind.ADAPTER, texts),
        departed=_readable(Kind.DATA_KEY, departed),
        models=_readable(Kind.MODEL, models),
    )


def _readable(kind: Kind, texts: Mapping[str, object]) -> dict[str, Record]:
    records = {record_id: read_record(kind, record_id, str(text)) for record_id, text in texts.items()}
    return {record_id: record for record_id, record in records.items() if not isinstance(record, Malformed)}
