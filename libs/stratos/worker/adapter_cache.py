"""Adapters of a worker: fetched on first use, checked, kept on disk, loaded into the engine, pinned while in use.

    hold -> on disk? else fetch into a private folder, check the digest, rename -> load into the engine -> pin

The digest is what is trusted: a folder whose bytes differ is removed and never loaded, and nothing falls back to
the base model.  Fetches and loads of one adapter are shared by all callers that wait for it.  When the object store is
down, adapters on disk go on working.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from stratos.common.background import BackgroundTasks
from stratos.common.errors import (
    AdapterMismatch,
    AdapterUnavailable,
    BadRequest,
    Busy,
    DependencyDown,
    InvalidAdapter,
    NotFound,
    RequestTooLarge,
    StratosError,
    WorkerLost,
)
from stratos.common.ids import new_id
from stratos.core.adapter import AdapterRef
from stratos.core.files.adapter_config import CONFIG_NAME
from stratos.core.files.adapter_files import WEIGHTS_NAME, AdapterFiles, read_adapter_files
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import AdapterCacheConfig

logger = logging.getLogger(__name__)
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_PRIVATE_PREFIX = "fetching"
MAX_PIN_TRIES = 3


class AdapterStore(Protocol):
    """Where adapter folders come from: the part of ``stratos.store.object_store.ObjectStore`` that is used here."""

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = ...
    ) -> None:
        """Copy a folder to ``destination``, which appears complete or not at all.

        Raises:
            DependencyDown: the store does not answer.
            NotFound: no such folder.
            RequestTooLarge: more than ``max_bytes``.
        """
        ...

    async def open(self) -> None:
        """Get ready; contacts nothing."""
        ...

    async def close(self) -> None: ...


class NoStore:
    """Stands in where no object store is configured: adapters on disk still work."""

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = 0
    ) -> None:
        """Always refuses."""
        raise DependencyDown("it is not in the cache of this worker, and OBJECT_STORE__URL is not set")

    async def open(self) -> None: ...

    async def close(self) -> None: ...


def open_adapter_store(config: ObjectStoreConfig | None) -> AdapterStore:
    """The store that is configured, or a stand-in that refuses; nothing is contacted yet."""
    return open_store(config) if config is not None else NoStore()


class AdapterCache:
    """Adapters on disk and in the engine. Belongs to the event loop."""

    def __init__(
        self, store: AdapterStore, engine: EngineClient, config: AdapterCacheConfig, metrics: WorkerMetrics
    ) -> None:
        self._store = store
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._checked: dict[str, AdapterFiles] = {}
        """Folders checked by this process, least recently used first."""
        self._fetching: dict[str, asyncio.Task[AdapterFiles]] = {}
        self._using: Counter[str] = Counter()
        """Callers that may be reading a folder now: it stays on disk."""
        self._brought: Counter[str] = Counter()
        """Holds to come whose adapter ``have_near`` found in the store: counted there, not as found on disk."""
        self._undoing = BackgroundTasks()
        """Pins of callers that were cancelled."""
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Referred to only by callers that load or wait to, so that it does not grow with every adapter ever seen."""

    async def hold(self, adapter: AdapterRef, stack: AsyncExitStack) -> None:
        """Have an adapter in the engine until ``stack`` unwinds.

        Raises:
            AdapterUnavailable: it cannot be fetched now.
            AdapterMismatch: the store's bytes are not the registered ones.
            InvalidAdapter: it does not fit the model.
            Busy: every slot of the engine is in use.
        """
        digest = adapter.digest
        # Pin first, load second: a pin fails unless the adapter is resident, and a resident adapter may be evicted
        # between its load and the pin, so each failed pin loads it again.  The folder is claimed (``_in_use``) before
        # the fetch and until the load has read it: the claim keeps it on disk, the pin keeps it in the engine.
        for attempt in range(MAX_PIN_TRIES):
            if await self._pin(digest):
                stack.push_async_callback(self._engine.unpin_adapter, digest)
                if not attempt:
                    self._metrics.adapter_holds.labels("engine").inc()
                return
            if not attempt and self._brought[digest]:
                self._brought[digest] -= 1
            elif not attempt:
                self._metrics.adapter_holds.labels("disk" if digest in self._checked else "store").inc()
            with self._in_use(digest):
                files = await self.fetch(digest, adapter.uri)
                lock = self._loading.setdefault(digest, asyncio.Lock())
                async with lock:  # the second caller finds it resident, and its load returns at once
                    try:
                        await self._engine.load_adapter(files)
                    except AdapterUnavailable as error:
                        raise Busy(error.message) from error
        raise Busy("adapters are evicted as fast as they are loaded; raise the engine's number of adapter slots")

    async def have_near(self, adapter: AdapterRef, stack: AsyncExitStack) -> None:
        """Have an adapter on disk, just read, until ``stack`` unwinds: ``hold`` takes no longer than loading it then.

        Raises as ``hold``.
        """
        stack.enter_context(self._in_use(adapter.digest))
        if adapter.digest not in self._checked:
            self._metrics.adapter_holds.labels("store").inc()
            self._brought[adapter.digest] += 1
            stack.callback(self._forget_brought, adapter.digest)
        await self.fetch(adapter.digest, adapter.uri)

    def _forget_brought(self, digest: str) -> None:
        """Leave no count where the hold never came, or for an adapter that none brings any more."""
        self._brought[digest] = max(0, self._brought[digest] - 1)
        self._brought += Counter()  # drops zeros

    async def _pin(self, digest: str) -> bool:
        """Pin an adapter; a caller that is cancelled in between leaves no pin, although the engine gets the call."""
        pinning = asyncio.ensure_future(self._engine.pin_adapter(digest))
        try:
            return await asyncio.shield(pinning)
        except asyncio.CancelledError:
            self._undoing.spawn(self._unpin_after(pinning, digest), name=f"unpin-{digest[:12]}")
            raise

    async def _unpin_after(self, pinning: asyncio.Future[bool], digest: str) -> None:
        with suppress(WorkerLost):  # an engine that is gone holds no pins
            if await pinning:
                await self._engine.unpin_adapter(digest)

    async def fetch(self, digest: str, uri: str) -> AdapterFiles:
        """Have an adapter on disk, checked; shared by all callers. Raises like ``hold``."""
        if not _DIGEST.match(digest):
            raise BadRequest("adapter_digest must be 64 hex digits", param="adapter_digest")
        if (known := self._checked.pop(digest, None)) is not None:
            self._checked[digest] = known
            return known
        task = self._fetching.get(digest)
        if task is None:
            task = self._fetching[digest] = asyncio.create_task(self._fetch(digest, uri), name=f"adapter-{digest[:12]}")
            task.add_done_callback(lambda done: self._fetched(digest, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End fetches under way and close the store."""
        for task in self._fetching.values():
            task.cancel()
        if self._fetching:
            await asyncio.wait(list(self._fetching.values()))
        await self._undoing.close()
        await self._store.close()

    def _fetched(self, digest: str, task: asyncio.Task[AdapterFiles]) -> None:
        del self._fetching[digest]
        if task.cancelled():
            return
        error = task.exception()
        outcome = error.code if isinstance(error, StratosError) else "bug" if error else "fetched"
        self._metrics.adapter_loads.labels(outcome).inc()
        if isinstance(error, StratosError):  # no client learns where the store is, or what is wrong with it
            logger.warning("adapter %s is not loaded: %s", digest[:12], error.message)

    async def _fetch(self, digest: str, uri: str) -> AdapterFiles:
        folder = self._config.directory / digest
        files = await asyncio.to_thread(_read_checked, folder, digest)
        if files is None:
            files = await self._download(digest, uri, folder)
        self._checked[digest] = files
        await self._evict(digest)
        return files

    @contextmanager
    def _in_use(self, digest: str) -> Iterator[None]:
        self._using[digest] += 1
        try:
            yield
        finally:
            self._using[digest] -= 1
            if not self._using[digest]:
                del self._using[digest]

    async def _download(self, digest: str, uri: str, folder: Path) -> AdapterFiles:
        private = self._config.directory / new_id(_PRIVATE_PREFIX)
        try:
            await self._store.download_folder(
                uri, private, names=(CONFIG_NAME, WEIGHTS_NAME), max_bytes=self._config.max_bytes
            )
            files = await asyncio.to_thread(read_adapter_files, private)
            if files.digest != digest:
                raise AdapterMismatch(
                    f"the adapter at {uri!r} has digest {files.digest[:12]}…, but {digest[:12]}… was registered; "
                    "register it again"
                )
            await asyncio.to_thread(private.rename, folder)
        except InvalidAdapter as error:
            raise AdapterMismatch(f"the adapter at {uri!r} is not what was registered: {error.message}") from error
        except (DependencyDown, NotFound, RequestTooLarge) as error:
            raise AdapterUnavailable(f"the adapter cannot be fetched: {error.message}") from error
        except OSError as error:
            raise AdapterUnavailable(_explain(error, self._config.directory)) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, private, ignore_errors=True)
        return dataclasses.replace(files, path=folder)

    async def _evict(self, keep: str) -> None:
        """Remove the least recently used folders until the rest fits; the engine holds its own copy of weights.

        Victims are chosen and renamed here, in the event loop, so that no caller finds a folder that is being removed;
        only looking and removing happen in a thread.
        """
        sizes = await asyncio.to_thread(_folder_sizes, self._config.directory)
        total = sum(sizes.values())
        unused = [name for name in sizes if name not in self._checked]
        doomed = []
        for name in [*unused, *self._checked]:
            if total <= self._config.max_bytes:
                break
            if name in sizes and name != keep and name not in self._using and name not in self._fetching:
                self._checked.pop(name, None)
                doomed.append(self._config.directory / name)
                total -= sizes[name]
        self._metrics.adapter_evictions.inc(len(doomed))
        self._metrics.adapter_disk_bytes.set(total)
        # All renames first, without an await between the choice and the rename: a caller that is let in by the
        # removals below must not choose one of these folders.
        for private in [_hide(folder) for folder in doomed]:
            if private is not None:
                await asyncio.to_thread(shutil.rmtree, private, ignore_errors=True)


def _folder_sizes(directory: Path) -> dict[str, int]:
    """Bytes of every adapter's folder; one that vanishes during the count has none."""
    sizes = {}
    for path in directory.iterdir():
        if _DIGEST.match(path.name):
            with suppress(FileNotFoundError):
                sizes[path.name] = sum(file.stat().st_size for file in path.iterdir())
    return sizes


def _hide(folder: Path) -> Path | None:
    """Give a folder a private name, under which a later start removes it too; ``None`` when it is gone already."""
    private = folder.parent / new_id(_PRIVATE_PREFIX)
    try:
        folder.rename(private)
    except FileNotFoundError:
        return None
    return private


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed process left of its fetches; for the start of a worker that owns ``directory``."""
    for pattern in (f"{_PRIVATE_PREFIX}-*", f".{_PRIVATE_PREFIX}-*"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _read_checked(folder: Path, digest: str) -> AdapterFiles | None:
    """Adapter that an earlier process left, if it is whole; damaged folders are removed."""
    if not folder.is_dir():
        return None
    try:
        files = read_adapter_files(folder)
    except InvalidAdapter:
        files = None
    if files is None or files.digest != digest:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return files


def _explain(error: OSError, directory: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no disk space for adapters in {directory}; free some, or lower adapter_cache_bytes"
    return f"adapters cannot be kept in {directory}: {os.strerror(error.errno or 0)}"
