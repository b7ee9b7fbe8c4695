"""Takes published revisions out: the manifest of one, and chunks that no manifest refers to any more.

A revision is gone with its manifest.  Its chunks stay until a sweep, which lists chunks before manifests, so what was
published in between is seen.  A sweep that ends in the middle has deleted some of what nothing refers to; the next one
deletes the rest.  It never runs beside a publication (``marks``).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stratos.common.errors import BadRequest, Busy, NotFound
from stratos.store.object_store import ObjectInfo, ObjectStore
from stratos.store.registry.catalogue import (
    FOLDER,
    ModelReference,
    PublishedModel,
    find_published,
    list_manifests,
)
from stratos.store.registry.manifest import MAX_MANIFEST_BYTES, decode_manifest
from stratos.store.registry.marks import Mark, MarkKind, marked

CHUNKS = "registry/chunks"
NUM_AT_ONCE = 32
MIN_AGE_S = 3600.0
"""Chunks younger than this stay: a publisher of a build without marks may be about to refer to them."""
_MANIFEST_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Swept:
    """Chunks that a sweep deleted, or would."""

    num_chunks: int = 0
    num_bytes: int = 0


async def unpublish(store: ObjectStore, reference: ModelReference) -> PublishedModel:
    """Take a revision of a name out; its chunks stay until a sweep.

    Raises:
        BadRequest: the reference names no revision, or several.
        NotFound: it is not published.
        InvalidCheckpoint, DependencyDown: as ``find_published``.
    """
    if not reference.digits:
        raise BadRequest(f"{reference} is whatever is newest; name the revision: {reference}@DIGITS", param="reference")
    found = await find_published(store, reference)
    for key, _, _ in await list_manifests(store, found.name, found.manifest.digest):
        await store.delete(key)
    return found


async def sweep(store: ObjectStore, *, min_age_s: float = MIN_AGE_S, deletes: bool = True) -> Swept:
    """Delete chunks that no manifest refers to.

    Args:
        store: the object store.
        min_age_s: younger chunks stay, by the store's own clock.
        deletes: false only counts.

    Raises:
        Busy: a model is being published, or another sweep runs.
        InvalidCheckpoint: a manifest cannot be read, so what it refers to is not known; nothing is deleted.
        DependencyDown: the store does not answer; what was not deleted the next sweep finds.
    """
    async with marked(store, MarkKind.SWEEPING) as mark:
        await _remove_dead_marks(store, mark)
        chunks = await store.list_all(CHUNKS)
        kept = await _referred_to(store)
        unused = [
            info
            for info in chunks
            if info.key.rpartition("/")[2] not in kept and mark.written_unix_s - info.written_unix_s >= min_age_s
        ]
        if deletes:
            await _delete(store, mark, unused)
        return Swept(len(unused), sum(info.num_bytes for info in unused))


async def _remove_dead_marks(store: ObjectStore, mark: Mark) -> None:
    """Let publications that stood still for long not stand, before their manifests could be missed."""
    for other in await mark.look():
        if mark.is_dead(other):
            await store.delete(other.key)


async def _referred_to(store: ObjectStore) -> set[str]:
    """Digests of all chunks of all manifests."""
    kept: set[str] = set()
    for info in await store.list_all(FOLDER):
        if info.key.endswith(_MANIFEST_SUFFIX):
            try:
                content = await store.read(info.key, 0, MAX_MANIFEST_BYTES)
            except NotFound:
                continue  # it was taken out since
            manifest = decode_manifest(content, info.key.rpartition("/")[2].removesuffix(_MANIFEST_SUFFIX))
            kept.update(digest for file in manifest.files for digest in file.chunks)
    return kept


async def _delete(store: ObjectStore, mark: Mark, unused: list[ObjectInfo]) -> None:
    for begin in range(0, len(unused), NUM_AT_ONCE):
        if not await mark.stands():
            raise Busy("this sweep stood still for long, and another one has begun", after_s=30.0)
        await asyncio.gather(*(store.delete(info.key) for info in unused[begin : begin + NUM_AT_ONCE]))
