"""Which store a URL names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.local_store import LocalStore
from stratos.store.object_store import ObjectStore
from stratos.store.settings import ObjectStoreConfig


def open_store(config: ObjectStoreConfig, *, num_attempts: int = 2) -> ObjectStore:
    """Open the store that ``config.url`` names. Nothing is contacted yet.

    Args:
        config: where it is and how it is reached.
        num_attempts: tries of an S3 request, the first included.

    Raises:
        BadRequest: another scheme, or no bucket or folder.
        DependencyDown: S3 is asked for and boto3 is not installed.
    """
    url = config.url
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        try:
            from stratos.store.s3_store import S3Store
        except ImportError as error:
            raise DependencyDown("an s3:// object store needs boto3: pip install boto3") from error
        prefix = parts.path.strip("/")
        return S3Store(parts.netloc, f"{prefix}/" if prefix else "", config, num_attempts)
    raise BadRequest(f"object store URL {url!r} must be file:///folder or s3://bucket/prefix", param="object_store_url")


@asynccontextmanager
async def opened_store(config: ObjectStoreConfig, *, num_attempts: int = 2) -> AsyncIterator[ObjectStore]:
    """``open_store`` for the time of a context; raises likewise."""
    store = open_store(config, num_attempts=num_attempts)
    try:
        yield store
    finally:
        await store.close()
