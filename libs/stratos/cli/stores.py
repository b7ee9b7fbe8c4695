"""The stores of a platform, opened for one command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from stratos.cli.data.credentials import Credentials, save_credentials
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, DependencyDown, StratosError
from stratos.rpc.clients.dialer import PLAIN, Dialer
from stratos.rpc.clients.gateway import fetch_snapshot
from stratos.store.records.adoption import Adoption, adopt_store, export_store, init_store
from stratos.store.records.manifest import ManifestStore
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.records.snapshot_copy import SnapshotCopy, load_copy, parse_copy, save_copy
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

T = TypeVar("T")
FillLedger = Callable[[str, bool], Awaitable[None]]
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget:
    """Where a platform keeps its records and objects."""

    redis_url: str = field(repr=False)
    object_store_url: str
    s3_endpoint_url: str = ""
    prefix: str = RecordStoreConfig().prefix

    @classmethod
    def of(cls, facts: PlatformFacts) -> StoreTarget:
        """The stores of a platform of ``stratos up``."""
        return cls(
            redis_url=facts.redis_url, object_store_url=facts.object_store_url, s3_endpoint_url=facts.s3_endpoint_url
        )


@asynccontextmanager
async def open_records(redis_url: str, prefix: str = RecordStoreConfig().prefix) -> AsyncIterator[RecordStore]:
    """The records in Redis."""
    async with open_redis(redis_url) as redis:
        yield RecordStore(redis, RecordStoreConfig(prefix=prefix))


async def set_up_own_store(target: StoreTarget, credentials: Credentials, data: DataDir, *, is_new: bool) -> bool:
    """Set up the store of a new data directory, once; false where an older one's store is gone.

    Args:
        target: where it is.
        credentials: of the data directory; the id is kept with them.
        data: the directory.
        is_new: whether this Redis was made for this run alone.

    Raises:
        DependencyDown: Redis or the object store does not answer.
    """
    async with open_stores(target) as (records, manifests):
        if is_new or not credentials.store_id:
            store_id = await init_store(records, manifests)
            if not credentials.store_id:
                save_credentials(data, replace(credentials, store_id=store_id))
            return True
        marker = await records.marker()
        return marker is not None and marker.store_id == credentials.store_id


@asynccontextmanager
async def open_stores(target: StoreTarget) -> AsyncIterator[tuple[RecordStore, ManifestStore]]:
    """The records in Redis, and the manifest in the object store."""
    async with AsyncExitStack() as stack:
        config = ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url)
        objects = await stack.enter_async_context(opened_store(config))
        records = await stack.enter_async_context(open_records(target.redis_url, target.prefix))
        yield records, ManifestStore(objects)


async def once_answered(
    call: Callable[[], Awaitable[T]], wait_s: float, clock: Clock, not_yet: type[StratosError] = DependencyDown
) -> T:
    """Result of a call once its stores answer.

    Args:
        call: made again and again.
        wait_s: the last call is made no later than that.
        clock: of that time.
        not_yet: an answer that also passes while an installation starts.

    Raises:
        DependencyDown: they do not within ``wait_s``; or ``not_yet``.
    """
    end_s = clock.now() + wait_s
    while True:
        try:
            return await call()
        except (DependencyDown, not_yet):
            if clock.now() >= end_s:
                raise
        await asyncio.sleep(RETRY_S)


async def run_init(target: StoreTarget) -> str:
    """Set up a store; returns its id."""
    async with open_stores(target) as (records, manifests):
        return await init_store(records, manifests)


async def run_export(target: StoreTarget, path: Path) -> SnapshotCopy:
    """Write all records into a file; returns them."""
    async with open_records(target.redis_url, target.prefix) as records:
        copy = await export_store(records, time.time())
    try:
        await asyncio.to_thread(save_copy, copy, path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from error
    return copy


async def run_adopt(
    target: StoreTarget,
    paths: Sequence[Path],
    gateways: Sequence[str],
    *,
    replaces: bool,
    dialer: Dialer = PLAIN,
    fill_ledger: FillLedger | None = None,
) -> Adoption:
    """Fill a Redis that was emptied, from the object store, files of copies, and gateways that run.

    Raises:
        BadRequest: a file cannot be read, or files and manifest are of several stores.
        DependencyDown: a gateway does not answer.
    """
    copies = [await asyncio.to_thread(load_copy, path) for path in paths]
    if missing := [str(path) for path, copy in zip(paths, copies, strict=True) if copy is None]:
        raise BadRequest(f"there is no file {', '.join(missing)}")
    copies += [parse_copy(await fetch_snapshot(address, dialer=dialer)) for address in gateways]
    async with open_stores(target) as (records, manifests):
        known = [copy for copy in copies if copy]
        return await adopt_store(records, manifests, known, replaces=replaces, fill_ledger=fill_ledger)
