"""Models that an installation's values name, recorded straight into its stores: no gateway has to run for it.

    record  ──▶ words into the object store, then the record, unless it is the newest of its name of this owner already
            ──▶ the last revisions of an owner stay: a job is not told which of them has workers
    retire  ──▶ records of this owner go whose name is not among those that stay

An owner is what the record's ``source`` says.  Live records of others are left alone, also where they are of the same
model, and so are records that changed after they were read.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stratos.cli.stores import StoreTarget, open_records
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import CONFIG_NAME, read_model_files
from stratos.core.files.model_texts import MAX_TEXT_BYTES, is_text_name
from stratos.store.models.alias_record import AliasRecord
from stratos.store.models.forms import model_from_json, model_id, model_to_json
from stratos.store.models.model_record import ModelRecord
from stratos.store.models.names import check_model_place
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.models.texts import put_texts
from stratos.store.object_store import ObjectStore
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter, Tombstone
from stratos.store.registry.catalogue import find_published, is_reference, parse_reference
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

NUM_REVISIONS = 4
"""Of a name that one owner recorded: workers of an older one serve while those of newer ones do not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredModel:
    """One model, as values say it."""

    name: str
    owner: str
    folder: Path | None = None
    """Model folder; ``None`` takes its words from the object store."""
    prefix: str = ""
    """Folder of the model in the object store, where ``digest`` is given, or its reference: no weights are read."""
    digest: str = ""
    """SHA-256 (hex) of configuration and weights; empty computes it from the folder."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its record; those that lack have their defaults."""


async def record_model(target: StoreTarget, model: DeclaredModel, actor: str) -> bool:
    """Record a model; false where it is recorded already, by another owner or as the newest of this owner's.

    A digest that is given moves its own record from another name.

    Raises:
        InvalidCheckpoint: it is no model folder.
        BadRequest: terms that cannot be, an adapter of that name, or a digest that has another name.
        NotFound: the object store has no such folder.
        DependencyDown: a store does not answer, or is not set up.
    """
    async with _opened(target) as (records, objects):
        digest, found = await _described(objects, model)
        record_id = model_id(model.name, digest)
        value = {**model.terms, "source": model.owner, **found}
        record = model_from_json(record_id, value)
        known = await records.records(Kind.MODEL, Kind.ADAPTER, Kind.ALIAS, Kind.ROLLOUT)
        _check_names(record, known, model.owner if model.digest else None)
        own = sorted((r for r in known if _is_of(r, model.owner)), key=lambda found: found.version, reverse=True)
        named = [found for found in own if _parts(found)[0] == model.name]
        writer = RecordWriter(records, actor=actor)
        await remove_records(writer, [r for r in own if _parts(r)[1] == digest and r not in named])
        is_new = not named or named[0].id != record_id or not _is_same(named[0].value, record)
        if is_new:
            made = model_to_json(replace(record, created_unix_s=await records.now_us() // 1_000_000))
            edit = partial(_unless_of_another, made=made, owner=model.owner)
            is_new = await writer.change(Kind.MODEL, record_id, "model.add", edit, takes_malformed=True)
        older = [found for found in named if found.id != record_id]
        pinned = {place.digest for alias in _aliases(known) for place in (*alias.targets, *alias.before)}
        pinned |= {digest for rollout in _rollouts(known) for digest in (rollout.old, rollout.new)}
        await remove_records(writer, [r for r in older[NUM_REVISIONS - 1 :] if _parts(r)[1] not in pinned])
        return is_new


async def retire_models(target: StoreTarget, owner: str, keep: Collection[str], actor: str) -> list[str]:
    """Remove an owner's records of all names but some; returns the names.

    Raises:
        DependencyDown: Redis does not answer, or is not set up.
    """
    async with open_records(target.redis_url, target.prefix) as records:
        found = [record for record in await records.records(Kind.MODEL) if _is_of(record, owner)]
        leaving = [record for record in found if _parts(record)[0] not in keep]
        gone = await remove_records(RecordWriter(records, actor=actor), leaving)
        return sorted({_parts(record)[0] for record in gone})


@asynccontextmanager
async def _opened(target: StoreTarget) -> AsyncIterator[tuple[RecordStore, ObjectStore]]:
    config = ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url)
    async with opened_store(config) as objects, open_records(target.redis_url, target.prefix) as records:
        await records.require_marker()  # before a folder of many gigabytes is read
        yield records, objects


async def _described(objects: ObjectStore, model: DeclaredModel) -> tuple[str, dict[str, Any]]:
    """The digest of a model, and fields of its record; its words are in the object store after it."""
    if is_reference(model.prefix):
        manifest = (await find_published(objects, parse_reference(model.prefix, "--from"))).manifest
        if model.digest not in ("", manifest.digest):
            raise InvalidCheckpoint(f"{model.prefix} has the digest {manifest.digest}, not {model.digest}")
        return manifest.digest, {"text_digest": manifest.text_digest, "facts": asdict(manifest.facts)}
    async with _words_of(objects, model) as folder:
        digest = model.digest or read_model_files(folder).digest
        return digest, {"text_digest": await put_texts(objects, folder)}


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


def _check_names(record: ModelRecord, known: Sequence[Record], mover: str | None) -> None:
    """Refuse what cannot be; the ``mover``'s own records of the same model under other names are no hindrance."""
    live = [found for found in known if not found.is_deleted]
    models = (found.value for found in live if not (mover and _is_of(found, mover)))
    same = [model.name for model in models if isinstance(model, ModelRecord) and model.digest == record.digest]
    check_model_place(record.name, same, (found.value for found in live))


def _aliases(known: Sequence[Record]) -> list[AliasRecord]:
    return [found.value for found in known if not found.is_deleted and isinstance(found.value, AliasRecord)]


def _rollouts(known: Sequence[Record]) -> list[RolloutRecord]:
    values = [found.value for found in known if not found.is_deleted]
    return [value for value in values if isinstance(value, RolloutRecord) and value.is_unfinished]


def _parts(record: Record) -> tuple[str, str]:
    """Name and digest."""
    name, _, digest = record.id.rpartition("/")
    return name, digest


def _is_of(record: Record, owner: str) -> bool:
    return not record.is_deleted and isinstance(record.value, ModelRecord) and record.value.source == owner


def _is_same(value: object, record: ModelRecord) -> bool:
    return isinstance(value, ModelRecord) and replace(value, created_unix_s=record.created_unix_s) == record


def _unless_of_another(old: Record | None, made: Mapping[str, Any], owner: str) -> Mapping[str, Any] | None:
    return None if old is not None and not old.is_deleted and not _is_of(old, owner) else made


async def remove_records(writer: RecordWriter, records: Sequence[Record]) -> list[Record]:
    """Remove those that are still as they were read."""
    removed = []
    for record in records:
        if await writer.change(Kind.MODEL, record.id, "model.remove", partial(_removed, version=record.version)):
            removed.append(record)
    return removed


def _removed(old: Record | None, version: int) -> Tombstone | None:
    return None if old is None or old.is_deleted or old.version != version else Tombstone({})
