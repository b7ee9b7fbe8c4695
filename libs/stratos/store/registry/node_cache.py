"""The models of a node: one bounded folder that its processes share, by digest, each with a lock.

    <folder>/<digest>-<words>/          a model, whole and checked; processes map its files
    <folder>/.<digest>-<words>.part/    one that is fetched, and goes on from here after a kill
    <folder>/.<digest>-<words>.lock     shared: it is used; alone: it is fetched, checked or removed
    <folder>/.room.lock                 alone: a fetch counts and makes room

Of several processes that want a model one fetches it, and the others wait for its lock.  Locks are the kernel's, so
they end with their process.  What is used least recently, and is not in use, makes room.  A model that lies there is
believed while its files are those that were checked (size, inode, times), else it is hashed again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stratos.common.errors import BadRequest, DependencyDown, InvalidCheckpoint
from stratos.common.files import replace_file
from stratos.core.files.digest import is_digest
from stratos.core.files.handed_digest import digest_in, hand_over, state_of
from stratos.core.files.model_files import CONFIG_NAME, digest_to_hand_over
from stratos.core.files.model_texts import text_digest
from stratos.store.object_store import ObjectStore
from stratos.store.registry.catalogue import ModelReference, find_published
from stratos.store.registry.fetching import FetchWork, disk_error, fetch_files
from stratos.store.registry.manifest import CHUNK_BYTES, WEIGHTS_SUFFIX, ModelManifest, read_manifest

CHECKED_NAME = ".checked"
"""File of a model: its digest, and the state of the files that were checked."""
MANIFEST_NAME = ".manifest"
"""File of a model: what it was fetched by, for starts while the object store is away."""
POLL_S = 0.1
_OURS = re.compile(r"\.?[0-9a-f]{64}-[0-9a-f]{16}(\.part)?\Z")
"""Names of folders that may be removed: whatever else lies in the folder stays."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model on this node, which stays until ``close``."""

    path: Path
    handed_digest: str
    """For ``read_model_files``, which then reads no weights."""
    manifest: ModelManifest
    _lock: IO[str]

    def close(self) -> None:
        """Let it make room for others."""
        self._lock.close()


class NodeCache:
    """Belongs to one process; any number of them share the folder.

    Args:
        folder: is made.
        max_bytes: of all models in it; 0 is bounded by the disk alone.
    """

    def __init__(self, folder: Path, max_bytes: int = 0) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    @asynccontextmanager
    async def model(
        self, store: ObjectStore, manifest: ModelManifest, work: FetchWork | None = None
    ) -> AsyncIterator[CachedModel]:
        """``hold`` for the time of a context."""
        with closing(await self.hold(store, manifest, work)) as held:
            yield held

    async def hold_reference(
        self, store: ObjectStore, reference: ModelReference, work: FetchWork | None = None
    ) -> CachedModel:
        """``hold`` of what a reference means; where the store is away, a whole digest is enough for what is here.

        Raises:
            NotFound: it is not published.
            StratosError: as ``hold``.
        """
        try:
            manifest = (await find_published(store, reference)).manifest
        except DependencyDown:
            known = await asyncio.to_thread(self._known, reference.digits)
            if known is None:
                raise
            manifest = known
        return await self.hold(store, manifest, work)

    async def hold(self, store: ObjectStore, manifest: ModelManifest, work: FetchWork | None = None) -> CachedModel:
        """A revision as a folder, fetched where it is not there; nothing removes it until it is closed.

        Raises:
            InvalidCheckpoint: what the store has is not what was published.
            DependencyDown: the store gives nothing, the disk is full, or the cache is full of models in use.
            BadRequest: the folder cannot be written.
        """
        name = f"{manifest.digest}-{manifest.text_digest[:16]}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / f".{name}.lock").open("a")
        except OSError as error:
            raise BadRequest(f"{self._folder} cannot be written: {error.strerror}", param="cache") from error
        try:
            while True:
                await _acquire(lock, fcntl.LOCK_SH)
                if (handed := await asyncio.to_thread(self._whole, name, manifest)) is not None:
                    os.utime(lock.fileno())
                    return CachedModel(self._folder / name, handed, manifest, lock)
                await _acquire(lock, fcntl.LOCK_EX)
                if await asyncio.to_thread(self._whole, name, manifest) is None:
                    await self._fetch(store, name, manifest, work or FetchWork())
        except BaseException:
            lock.close()
            raise

    async def _fetch(self, store: ObjectStore, name: str, manifest: ModelManifest, work: FetchWork) -> None:
        """Bring a model, under its lock."""
        part, path = self._folder / f".{name}.part", self._folder / name
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        try:
            await self._make_room(name, manifest)
        except OSError as error:
            raise disk_error(error, part) from error
        try:
            await fetch_files(store, manifest, part, work)
            await asyncio.to_thread(_publish, part, path, manifest)
        except DependencyDown:
            if shutil.disk_usage(self._folder).free < CHUNK_BYTES:  # else a later fetch goes on with what there is
                await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
            raise
        except OSError as error:
            raise disk_error(error, part) from error

    async def _make_room(self, name: str, manifest: ModelManifest) -> None:
        """Reserve room for a model: its part has the size of the whole from now on."""
        part = self._folder / f".{name}.part"
        with (self._folder / ".room.lock").open("a") as room:
            await _acquire(room, fcntl.LOCK_EX)
            sizes = await asyncio.to_thread(_sizes, self._folder)
            need = manifest.num_bytes - _stored_bytes(part)
            total = sum(size for path, size in sizes.items() if path != part)
            for path in sorted(sizes, key=_last_use):
                is_bounded = not self._max_bytes or total + manifest.num_bytes <= self._max_bytes
                if is_bounded and need <= shutil.disk_usage(self._folder).free:
                    break
                if path != part and await asyncio.to_thread(_remove_unused, path):
                    total -= sizes[path]
            if self._max_bytes and total + manifest.num_bytes > self._max_bytes:
                raise DependencyDown(
                    f"the cache {self._folder} has room for {self._max_bytes} bytes; {total} are of models in use, and "
                    f"{manifest.digest[:12]} has {manifest.num_bytes}"
                )
            if need > (free := shutil.disk_usage(self._folder).free):
                raise DependencyDown(
                    f"no disk space for {manifest.digest[:12]} in {self._folder}: {need} bytes are needed, {free} free"
                )
            part.mkdir(exist_ok=True)
            for file in manifest.files:
                (part / file.name).parent.mkdir(parents=True, exist_ok=True)
                with (part / file.name).open("ab") as opened:
                    opened.truncate(file.num_bytes)

    def _known(self, digest: str) -> ModelManifest | None:
        """The manifest of a model that is here; none where it is here with two sets of words, of which one is meant."""
        paths = list(self._folder.glob(f"{digest}-*")) if is_digest(digest) else []
        with suppress(OSError, InvalidCheckpoint):
            if len(paths) == 1:
                return read_manifest((paths[0] / MANIFEST_NAME).read_bytes(), f"the manifest in {paths[0]}")
        return None

    def _whole(self, name: str, manifest: ModelManifest) -> str | None:
        """The digest to hand over of a model that is there and is what it should be."""
        path = self._folder / name
        try:
            known = (path / CHECKED_NAME).read_text(encoding="utf-8")
            handed = digest_to_hand_over(path, known)
            if digest_in(handed) != manifest.digest or text_digest(path) != manifest.text_digest:
                return None
            if handed != known:
                replace_file(path / CHECKED_NAME, handed.encode())
        except (InvalidCheckpoint, OSError):
            return None
        return handed


def _publish(part: Path, path: Path, manifest: ModelManifest) -> None:
    """Let a part that is whole be the model; its chunks were hashed while they came."""
    if text_digest(part) != manifest.text_digest:
        shutil.rmtree(part, ignore_errors=True)
        raise InvalidCheckpoint(
            f"tokenizer, templates and configuration of {manifest.digest[:12]} do not have the digest that its "
            f"manifest says ({manifest.text_digest[:12]})"
        )
    (part / MANIFEST_NAME).write_bytes(manifest.encoded())
    weights = sorted(part.glob(f"*{WEIGHTS_SUFFIX}"))
    (part / CHECKED_NAME).write_text(hand_over(manifest.digest, state_of([part / CONFIG_NAME, *weights])))
    part.rename(path)


async def _acquire(lock: IO[str], how: int) -> None:
    """Take a lock in place of what this file held; looked for again and again, so that the caller can be cancelled."""
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(POLL_S)
        except OSError as error:
            raise DependencyDown(f"{lock.name} cannot be locked: {error.strerror}") from error
        else:
            return


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    """Hold the lock of a model, unless it is in use."""
    name = path.name.removesuffix(".part").lstrip(".")
    with path.with_name(f".{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _remove_unused(path: Path) -> bool:
    with _unused(path) as is_unused:
        if is_unused:
            shutil.rmtree(path, ignore_errors=True)
        return is_unused


def _sizes(folder: Path) -> dict[Path, int]:
    """Models and parts of them, each with the size that it has when it is whole."""
    found = [path for path in folder.iterdir() if _OURS.match(path.name) and path.is_dir()]
    return {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in found}


def _stored_bytes(folder: Path) -> int:
    """Bytes of the disk that files take."""
    if not folder.is_dir():
        return 0
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _last_use(path: Path) -> float:
    name = path.name.removesuffix(".part").lstrip(".")
    with suppress(FileNotFoundError):
        return path.with_name(f".{name}.lock").stat().st_mtime
    return 0.0
