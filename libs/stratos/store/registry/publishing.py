"""Publishes a model folder: chunks that lack are sent, the manifest comes last.

    read a chunk ──▶ its digest ──▶ there with its size? else send ──▶ ... ──▶ files unchanged? ──▶ words ──▶ manifest

A mark lies in the store, beside which no sweep begins (``marks``).

A publication that ends in the middle leaves chunks and no manifest, so the revision does not exist; the next one sends
what lacks.  Memory is bounded by the chunks under way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest, Busy, InvalidCheckpoint, NotFound
from stratos.core.files.handed_digest import state_of
from stratos.core.files.model_texts import is_text_name, text_digest
from stratos.store.models.model_record import ModelFacts
from stratos.store.models.texts import put_texts, text_key
from stratos.store.object_store import MAX_FOLDER_FILES, ObjectStore
from stratos.store.registry.catalogue import (
    ModelReference,
    PublishedModel,
    find_published,
    list_manifests,
    manifest_key,
    read_published,
)
from stratos.store.registry.manifest import (
    CHUNK_BYTES,
    ModelManifest,
    PublishedFile,
    check_manifest,
    chunk_key,
    is_published_name,
    weights_digest,
)
from stratos.store.registry.marks import Mark, MarkKind, marked

NUM_IN_FLIGHT = 4
TOKENIZER_NAME = "tokenizer.json"
Progress = Callable[[int, int], None]
"""Told bytes that are through, and bytes of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAsk:
    """A folder that is to be published."""

    name: str
    folder: Path
    facts: ModelFacts
    created_unix_s: int
    digest: str = ""
    """SHA-256 (hex) of configuration and weights as they were checked; empty believes what is there now."""
    text_digest: str = ""
    """SHA-256 (hex) of the words as they were checked; likewise."""
    repairs: bool = False
    """Read what is there, and send again what differs from its digest."""


async def publish(store: ObjectStore, ask: PublishAsk, progress: Progress = lambda done, total: None) -> PublishedModel:
    """Publish a folder that was checked; one that is published already stays as it is.

    Raises:
        InvalidCheckpoint: a file changed while it was read.
        BadRequest: this revision of the name is published with another tokenizer or template.
        Busy: the registry is being swept, or was while this process stood still.
        DependencyDown: the store does not answer.
    """
    async with marked(store, MarkKind.PUBLISHING) as mark:
        return await _publish(store, ask, progress, mark)


async def _publish(store: ObjectStore, ask: PublishAsk, progress: Progress, mark: Mark) -> PublishedModel:
    names = published_names(ask.folder)
    paths = [ask.folder / name for name in names]
    state, total = state_of(paths), sum(path.stat().st_size for path in paths)
    sender = _Sender(store, ask, progress, total)
    files = tuple([await sender.send(name) for name in names])
    texts = await asyncio.to_thread(text_digest, ask.folder)
    is_checked = ask.digest in ("", weights_digest(files)) and ask.text_digest in ("", texts)
    if state_of(paths) != state or not is_checked:
        raise _changed(ask.folder)
    manifest = ModelManifest(
        digest=weights_digest(files),
        text_digest=texts,
        tokenizer_digest=await asyncio.to_thread(_file_digest, ask.folder / TOKENIZER_NAME),
        created_unix_s=ask.created_unix_s,
        facts=ask.facts,
        files=files,
    )
    check_manifest(manifest, "the manifest")
    known = await _known(store, ask.name, manifest, repairs=ask.repairs)
    has_words = known is not None and not ask.repairs and await _has_words(store, manifest)
    if not has_words and await put_texts(store, ask.folder) != texts:
        raise _changed(ask.folder)
    return known or await _put_manifest(store, ask.name, manifest, mark)


async def publish_again(store: ObjectStore, name: str, reference: ModelReference) -> PublishedModel:
    """Publish a revision under another name: its manifest alone, since its chunks are there.

    Raises:
        InvalidCheckpoint: a chunk lacks, or has another size.
        NotFound: there is no such revision.
        BadRequest: the name has this revision with another tokenizer or template.
        DependencyDown: the store does not answer.
    """
    async with marked(store, MarkKind.PUBLISHING) as mark:
        return await _publish_again(store, name, reference, mark)


async def _publish_again(store: ObjectStore, name: str, reference: ModelReference, mark: Mark) -> PublishedModel:
    manifest = (await find_published(store, reference)).manifest
    places = {file.chunks[i]: file.size_of(i) for file in manifest.files for i in range(len(file.chunks))}
    slots = asyncio.Semaphore(NUM_IN_FLIGHT)

    async def lacks(digest: str, num_bytes: int) -> bool:
        async with slots:
            return not await has_size(store, chunk_key(digest), num_bytes)

    if any(await asyncio.gather(*(lacks(digest, size) for digest, size in places.items()))):
        raise InvalidCheckpoint(
            f"{reference} is damaged: the object store lacks a chunk; publish it again from its folder"
        )
    return await _known(store, name, manifest) or await _put_manifest(store, name, manifest, mark)


def published_names(folder: Path) -> list[str]:
    """Names of the files of a model folder that are published, the small ones first."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(filter(is_published_name, names), key=lambda name: ((folder / name).stat().st_size, name))


async def _known(
    store: ObjectStore, name: str, manifest: ModelManifest, *, repairs: bool = False
) -> PublishedModel | None:
    """The revision as it is published already; a repair removes what was altered of it."""
    for key, digest, manifest_digest in await list_manifests(store, name, manifest.digest):
        try:
            known = await read_published(store, name, key, digest, manifest_digest)
        except InvalidCheckpoint:
            if not repairs:
                raise
            await store.delete(key)
            continue
        if known is not None and known.manifest.text_digest != manifest.text_digest:
            raise _other_words(known, manifest)
        if known is not None:
            return known
    return None


async def _put_manifest(store: ObjectStore, name: str, manifest: ModelManifest, mark: Mark) -> PublishedModel:
    """Let a revision be there, whose words are."""
    if len(await list_manifests(store, name)) >= MAX_FOLDER_FILES:
        raise BadRequest(f"{name} has {MAX_FOLDER_FILES} revisions, the most of a name; take another one", param="name")
    content = manifest.encoded()
    made = PublishedModel(name, manifest, hashlib.sha256(content).hexdigest())
    own_key = manifest_key(name, manifest.digest, made.manifest_digest)
    await store.put(own_key, content)
    if not await mark.stands():  # a sweep took this process for dead, and may have deleted what it did not send again
        await store.delete(own_key)
        raise Busy("the registry was swept while this publication stood still; publish again", after_s=1.0)
    for key, digest, manifest_digest in await list_manifests(store, name, manifest.digest):
        other = await read_published(store, name, key, digest, manifest_digest)
        # It was published at the same time: one of both sees the other one.
        if other is not None and other.manifest.text_digest != manifest.text_digest:
            await store.delete(own_key)
            raise _other_words(other, manifest)
    return made


def _other_words(known: PublishedModel, manifest: ModelManifest) -> BadRequest:
    return BadRequest(
        f"{known.reference} is published with another tokenizer, template or configuration "
        f"(text digest {known.manifest.text_digest[:12]}, not {manifest.text_digest[:12]}); take another name",
        param="path",
    )


def _changed(folder: Path) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"files of {folder} changed since they were checked; publish again")


async def _has_words(store: ObjectStore, manifest: ModelManifest) -> bool:
    """Whether what gateways read is there, with its sizes."""
    words = [file for file in manifest.files if is_text_name(file.name)]
    return all([await has_size(store, text_key(manifest.text_digest, file.name), file.num_bytes) for file in words])


class _Sender:
    """Sends what lacks of files, several chunks at a time."""

    def __init__(self, store: ObjectStore, ask: PublishAsk, progress: Progress, total: int) -> None:
        self._store, self._ask, self._progress, self._total = store, ask, progress, total
        self._done = 0
        self._slots = asyncio.Semaphore(NUM_IN_FLIGHT)

    async def send(self, name: str) -> PublishedFile:
        path = self._ask.folder / name
        size = path.stat().st_size
        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for begin in range(0, size, CHUNK_BYTES):
                    await self._slots.acquire()
                    tasks.append(group.create_task(self._send_chunk(path, begin, min(CHUNK_BYTES, size - begin))))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return PublishedFile(name=name, num_bytes=size, chunks=tuple(task.result() for task in tasks))

    async def _send_chunk(self, path: Path, begin: int, num_bytes: int) -> str:
        try:
            content, digest = await asyncio.to_thread(_read_chunk, path, begin, num_bytes)
            key = chunk_key(digest)
            if not await self._is_there(key, digest, num_bytes):
                await self._store.put(key, content)
        finally:
            self._slots.release()
        self._done += num_bytes
        self._progress(self._done, self._total)
        return digest

    async def _is_there(self, key: str, digest: str, num_bytes: int) -> bool:
        """A chunk of this size is there: the last byte can be read, and none behind it."""
        found = await has_size(self._store, key, num_bytes)
        if not found or not self._ask.repairs:
            return found
        content = await self._store.read(key, 0, num_bytes)
        return hashlib.sha256(content).hexdigest() == digest


async def has_size(store: ObjectStore, key: str, num_bytes: int) -> bool:
    """Whether an object is there with exactly this size."""
    begin = max(num_bytes - 1, 0)
    try:
        return len(await store.read(key, begin, 2)) == num_bytes - begin
    except NotFound:
        return False


def _read_chunk(path: Path, begin: int, num_bytes: int) -> tuple[bytes, str]:
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        content = b"".join(_pieces(file.read, num_bytes))
    if len(content) != num_bytes:
        raise InvalidCheckpoint(f"{path} became shorter while it was published")
    return content, hashlib.sha256(content).hexdigest()


def _pieces(read: Callable[[int], bytes], left: int) -> Iterator[bytes]:
    while left and (piece := read(left)):
        left -= len(piece)
        yield piece


def _file_digest(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
