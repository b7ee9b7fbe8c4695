"""The object store of a worker: the one its settings name, or none."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stratos.common.errors import DependencyDown
from stratos.store.urls import open_store
from stratos.worker.adapter_cache import AdapterStore
from stratos.worker.settings import WorkerSettings


class NoStore:
    """Stands in where no object store is configured: adapters on disk still work."""

    async def download_folder(
        self, folder: str, destination: Path, *, names: Collection[str] | None = None, max_bytes: int = 0
    ) -> None:
        """Always refuses."""
        raise DependencyDown("it is not in the cache of this worker, and OBJECT_STORE_URL is not set")

    async def close(self) -> None:
        """Nothing to close."""


def open_adapter_store(settings: WorkerSettings) -> AdapterStore:
    """The store that ``object_store_url`` names; nothing is contacted yet."""
    if not settings.object_store_url:
        return NoStore()
    return open_store(settings.object_store_url, s3_endpoint_url=settings.s3_endpoint_url)
