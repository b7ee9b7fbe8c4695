"""Models that an installation's values name, recorded straight into its stores: no gateway has to run for it.

    record  ──▶ words into the object store, then the record, unless it is there and the newest of its name
            ──▶ the last two revisions of an owner stay: the one before has workers until new ones serve
    retire  ──▶ records of this owner go whose name is not among those that stay

An owner is what the record's ``source`` says.  Models that people added have another one, and are left alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratos.cli.stores import StoreTarget, open_records
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.adapter import Adapter
from stratos.core.files.model_files import CONFIG_NAME, read_model_files
from stratos.core.files.model_texts import MAX_TEXT_BYTES, is_text_name
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.forms import model_from_json, model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.texts import put_texts
from stratos.store.object_store import ObjectStore
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store

NUM_REVISIONS = 2
"""Of a name that one owner recorded: the newest, and the one before it, whose workers serve until new ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredModel:
    """One model, as values say it."""

    name: str
    owner: str
    folder: Path | None = None
    """Model folder; ``None`` takes its words from the object store."""
    prefix: str = ""
    """Folder of the model in the object store, where ``digest`` is given: no weights are read."""
    digest: str = ""
    """SHA-256 (hex) of configuration and weights; empty computes it from the folder."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its record; those that lack have their defaults."""


async def record_model(target: StoreTarget, model: DeclaredModel, actor: str) -> bool:
    """Record a model; false where it is recorded already, and the newest of its name.

    Raises:
        InvalidCheckpoint: it is no model folder.
        BadRequest: terms that cannot be, an adapter of that name, or a digest that has another name.
        NotFound: the object store has no such folder.
        DependencyDown: a store does not answer, or is not set up.
    """
    async with _opened(target) as (records, objects), _words_of(objects, model) as folder:
        digest = model.digest or read_model_files(folder).digest
        record_id = model_id(model.name, digest)
        value = {**model.terms, "source": model.owner, "text_digest": await put_texts(objects, folder)}
        record = model_from_json(record_id, value)
        known = await records.records(Kind.MODEL, Kind.ADAPTER, Kind.ALIAS)
        _check_names(record, known)
        newest = max(_live(known, model.name), key=lambda found: found.version, default=None)
        is_new = newest is None or newest.id != record_id or not _is_same(newest.value, record)
        writer = RecordWriter(records, actor=actor)
        if is_new:
            made = model_to_json(replace(record, created_unix_s=await records.now_us() // 1_000_000))
            await writer.change(Kind.MODEL, record_id, "model.add", lambda old: made, takes_malformed=True)
        older = [found for found in _live(known, model.name) if found.id != record_id and _is_of(found, model.owner)]
        older.sort(key=lambda found: found.version, reverse=True)
        pinned = {target.digest for alias in _aliases(known) for target in alias.targets}
        await _remove(writer, [f for f in older[NUM_REVISIONS - 1 :] if f.id.rpartition("/")[2] not in pinned])
        return is_new


async def retire_models(target: StoreTarget, owner: str, keep: Collection[str], actor: str) -> list[str]:
    """Remove an owner's records of all names but some; returns the names.

    Raises:
        DependencyDown: Redis does not answer, or is not set up.
    """
    async with open_records(target.redis_url, target.prefix) as records:
        found = [record for record in await records.records(Kind.MODEL) if _is_of(record, owner)]
        gone = [record for record in found if record.id.rpartition("/")[0] not in keep]
        await _remove(RecordWriter(records, actor=actor), gone)
        return sorted({record.id.rpartition("/")[0] for record in gone})


@asynccontextmanager
async def _opened(target: StoreTarget) -> AsyncIterator[tuple[RecordStore, ObjectStore]]:
    objects = open_store(ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url))
    try:
        async with open_records(target.redis_url, target.prefix) as records:
            await records.require_marker()  # before a folder of many gigabytes is read
            yield records, objects
    finally:
        await objects.close()


@asynccontextmanager
async def _words_of(objects: ObjectStore, model: DeclaredModel) -> AsyncIterator[Path]:
    """A folder with at least the text files of a model."""
    if model.folder is not None:
        yield model.folder
        return
    if not model.digest:
        raise BadRequest("without a folder the model's digest must be given", param="digest")
    with tempfile.TemporaryDirectory(prefix="stratos-words-") as work:
        head, folder = len(model.prefix) + 1, Path(work) / "model"
        names = [info.key[head:] for info in await objects.list_folder(model.prefix)]
        words = [name for name in names if is_text_name(name)]
        if CONFIG_NAME not in words:
            raise InvalidCheckpoint(f"{model.prefix} in the object store has no {CONFIG_NAME}")
        await objects.download_folder(model.prefix, folder, names=words, max_bytes=MAX_TEXT_BYTES)
        yield folder


def _check_names(record: ModelRecord, known: Sequence[Record]) -> None:
    models = [found.value for found in known if found.kind is Kind.MODEL and not found.is_deleted]
    others = {m.name for m in models if isinstance(m, ModelRecord) and m.digest == record.digest} - {record.name}
    if others:
        raise BadRequest(f"this model is recorded as {min(others)!r} already", param="digest")
    adapters = [found.value for found in known if found.kind is Kind.ADAPTER and not found.is_deleted]
    if any(isinstance(found, Adapter) and found.name == record.name for found in adapters):
        raise BadRequest(f"an adapter has the name {record.name!r}", param="name")
    same = (alias for alias in _aliases(known) if alias.name == record.name)
    if any(target.model != record.name for alias in same for target in alias.targets):
        raise BadRequest(f"an alias has the name {record.name!r}", param="name")


def _aliases(known: Sequence[Record]) -> list[AliasRecord]:
    return [found.value for found in known if not found.is_deleted and isinstance(found.value, AliasRecord)]


def _live(known: Sequence[Record], name: str) -> list[Record]:
    models = [found for found in known if found.kind is Kind.MODEL and not found.is_deleted]
    return [found for found in models if found.id.rpartition("/")[0] == name]


def _is_of(record: Record, owner: str) -> bool:
    return not record.is_deleted and isinstance(record.value, ModelRecord) and record.value.source == owner


def _is_same(value: object, record: ModelRecord) -> bool:
    return isinstance(value, ModelRecord) and replace(value, created_unix_s=record.created_unix_s) == record


async def _remove(writer: RecordWriter, records: Sequence[Record]) -> None:
    for record in records:
        await writer.change(Kind.MODEL, record.id, "model.remove", _removed)


def _removed(old: Record | None) -> Tombstone | None:
    return None if old is None or old.is_deleted else Tombstone({})
