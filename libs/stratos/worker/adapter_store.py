"""The object store of a worker: the one its settings name, or none."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stratos.common.errors import DependencyDown
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store
from stratos.worker.adapter_cache import AdapterStore


class NoStore:
    """Stands in where no object store is configured: adapters on disk still work."""

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = 0
    ) -> None:
        """Always refuses."""
        raise DependencyDown("it is not in the cache of this worker, and OBJECT_STORE__URL is not set")

    async def close(self) -> None:
        """Nothing to close."""


def open_adapter_store(config: ObjectStoreConfig | None) -> AdapterStore:
    """The store that is configured, or a stand-in that refuses; nothing is contacted yet."""
    return open_store(config) if config is not None else NoStore()
