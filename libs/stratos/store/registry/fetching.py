"""Streams a published revision from the object store into a folder, and checks every byte before it counts.

    several chunks at a time, each by ranges:  read a range ──▶ hash and write it ──▶ ... ──▶ the digest? ──▶ noted

A store that fails in the middle is asked again from the range that lacks, as long as it gives something within the
patience.  Chunks that were whole are noted in a file; a fetch that goes on after its process was killed hashes those
and reads the rest.  Memory is two ranges for each chunk under way.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratos.common.background import end_tasks
from stratos.common.errors import DependencyDown, InvalidCheckpoint, NotFound
from stratos.store.object_store import ObjectStore
from stratos.store.registry.manifest import CHUNK_BYTES, ModelManifest, PublishedFile, chunk_key
from stratos.store.settings import ObjectStoreConfig

NOTES_NAME = ".chunks"
"""File of the chunks that are whole, a line each: their place in the manifest."""
NUM_IN_FLIGHT, NUM_AHEAD = 6, 1
"""Chunks under way, and ranges of each that are asked for before the one before them is written."""
NUM_DISK_THREADS = 4
RANGE_BYTES = 4 << 20
SILENCE_S = 10.0
"""Longest silence of the store in a transfer: several share the link, so one may wait for long."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
Place = tuple[PublishedFile, int]


@dataclass(slots=True, kw_only=True)
class FetchWork:
    """One fetch: how it goes about, and what it did."""

    patience_s: float = 60.0
    """Longest time in which the store may give nothing at all before the fetch is given up."""
    on_bytes: Callable[[int], None] = lambda count: None
    """Told of bytes that came from the store."""
    num_fetched_bytes: int = 0
    num_kept_bytes: int = 0
    """Bytes of an earlier fetch that did not end."""
    num_failures: int = 0
    """Requests that the store failed."""
    _failing_since: float | None = field(default=None, init=False)

    def came(self, count: int) -> None:
        """Note bytes from the store."""
        self._failing_since = None
        self.num_fetched_bytes += count
        self.on_bytes(count)

    def must_give_up(self, now: float) -> bool:
        """Note a failure; whether the store has given nothing for too long."""
        self.num_failures += 1
        self._failing_since = now if self._failing_since is None else self._failing_since
        return now - self._failing_since > self.patience_s


async def fetch_files(
    store: ObjectStore, manifest: ModelManifest, folder: Path, work: FetchWork, names: Collection[str] | None = None
) -> None:
    """Bring the files of a revision into a folder, which may hold a part of them already.

    Args:
        store: where they come from.
        manifest: of the revision, checked.
        folder: is made; belongs to this call alone while it runs.
        work: bounds and counters.
        names: only these files.

    Raises:
        InvalidCheckpoint: a chunk is not there, or is another one than its digest says.
        DependencyDown: the store gave nothing for too long, or the disk is full.
    """
    files = [file for file in manifest.files if names is None or file.name in names]
    places = [(file, index) for file in files for index in range(len(file.chunks))]
    try:
        whole = await asyncio.to_thread(_prepare, folder, files)
        queue = iter([(file, index) for file, index in places if (file.name, index) not in whole])
        work.num_kept_bytes += sum(file.size_of(index) for file, index in places if (file.name, index) in whole)
        with (
            (folder / NOTES_NAME).open("a", encoding="utf-8", buffering=1) as notes,
            ThreadPoolExecutor(NUM_DISK_THREADS, "model-disk") as disk,
        ):
            fetch = _Fetch(store, folder, work, lambda place: notes.write(f"{place[0].name}\t{place[1]}\n"), disk)
            async with asyncio.TaskGroup() as group:
                for _ in range(NUM_IN_FLIGHT):
                    group.create_task(fetch.run(queue))
        await asyncio.to_thread(_finish, folder, files)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    except OSError as error:
        raise disk_error(error, folder) from error


def for_transfers(config: ObjectStoreConfig) -> ObjectStoreConfig:
    """The same store, asked with the patience of a transfer."""
    return replace(config, timeout_s=max(config.timeout_s, SILENCE_S))


def disk_error(error: OSError, folder: Path) -> DependencyDown:
    """The error that says what a failure of the local disk means."""
    if error.errno in _FULL:
        return DependencyDown(
            f"no disk space is left in {folder.parent}: free some, or point the cache to another disk"
        )
    return DependencyDown(f"{folder} cannot be written: {error.strerror or error}")


class _Fetch:
    """State that fetchers of one revision share."""

    def __init__(
        self, store: ObjectStore, folder: Path, work: FetchWork, note: Callable[[Place], object], disk: Executor
    ) -> None:
        self._store, self._folder, self._work, self._note, self._disk = store, folder, work, note, disk

    async def _on_disk(self, work: Callable[..., None], *args: Any) -> None:
        """Run work in threads of its own: those of the loop wait for the store."""
        await asyncio.get_running_loop().run_in_executor(self._disk, work, *args)

    async def run(self, queue: Iterator[Place]) -> None:
        """Fetch what is next, until nothing is left."""
        for place in queue:
            try:
                if not await self._fetch(place) and not await self._fetch(place):
                    file, index = place
                    raise InvalidCheckpoint(
                        f"chunk {index} of {file.name} in the object store is not what was published (digest "
                        f"{file.chunks[index][:12]}); publish the model again with --repair"
                    )
            except OSError as error:
                raise disk_error(error, self._folder) from error
            self._note(place)

    async def _fetch(self, place: Place) -> bool:
        """Bring one chunk; whether it has its digest."""
        file, index = place
        digest, offset, path = hashlib.sha256(), index * CHUNK_BYTES, self._folder / file.name
        async with aclosing(self._ranges(file.chunks[index], file.size_of(index))) as parts:
            async for part in parts:
                await self._on_disk(_take, path, offset, part, digest)
                offset += len(part)
        await self._on_disk(_sync, path)  # now, while other chunks come, rather than at the end
        return digest.hexdigest() == file.chunks[index]

    async def _ranges(self, chunk: str, num_bytes: int) -> AsyncGenerator[bytes]:
        """The ranges of a chunk in order; the next one is under way while one is hashed and written."""
        sizes = [(begin, min(RANGE_BYTES, num_bytes - begin)) for begin in range(0, num_bytes, RANGE_BYTES)]
        ahead: deque[asyncio.Task[bytes]] = deque()
        try:
            for begin, size in sizes:
                ahead.append(asyncio.create_task(self._read(chunk, begin, size)))
                if len(ahead) > NUM_AHEAD:
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            await end_tasks(ahead)

    async def _read(self, chunk: str, begin: int, num_bytes: int) -> bytes:
        """A range of a chunk, asked for until it comes."""
        pause_s, loop = FIRST_PAUSE_S, asyncio.get_running_loop()
        while True:
            try:
                part = await self._store.read(chunk_key(chunk), begin, num_bytes)
            except NotFound:
                raise InvalidCheckpoint(
                    f"the object store lacks the chunk {chunk[:12]}; publish the model again"
                ) from None
            except DependencyDown:
                if self._work.must_give_up(loop.time()):
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            self._work.came(len(part))
            return part


def _take(path: Path, offset: int, part: bytes, digest: hashlib._Hash) -> None:
    """Hash and write a range; the file is opened here, since a thread goes on when its caller is cancelled."""
    digest.update(part)
    view = memoryview(part)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        while view:
            count = os.pwrite(descriptor, view, offset)
            view, offset = view[count:], offset + count
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prepare(folder: Path, files: Sequence[PublishedFile]) -> set[tuple[str, int]]:
    """Make every file with its size; returns the chunks that are whole already."""
    folder.mkdir(parents=True, exist_ok=True)
    noted = _noted(folder)
    whole: set[tuple[str, int]] = set()
    for file in files:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_there = path.is_file() and path.stat().st_size == file.num_bytes
        with path.open("r+b" if is_there else "wb") as opened:
            opened.truncate(file.num_bytes)
            for index in range(len(file.chunks)) if is_there else ():
                if (file.name, str(index)) in noted and _is_whole(opened.fileno(), file, index):
                    whole.add((file.name, index))
    return whole


def _noted(folder: Path) -> set[tuple[str, ...]]:
    try:
        lines = (folder / NOTES_NAME).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return set()
    return {tuple(line.split("\t")) for line in lines}


def _is_whole(descriptor: int, file: PublishedFile, index: int) -> bool:
    digest, offset, end = hashlib.sha256(), index * CHUNK_BYTES, index * CHUNK_BYTES + file.size_of(index)
    while offset < end:
        part = os.pread(descriptor, min(RANGE_BYTES, end - offset), offset)
        if not part:
            return False
        digest.update(part)
        offset += len(part)
    return digest.hexdigest() == file.chunks[index]


def _finish(folder: Path, files: Sequence[PublishedFile]) -> None:
    """Let the files outlive the machine, before their folder counts as whole."""
    for file in files:
        _sync(folder / file.name)
    (folder / NOTES_NAME).unlink()
