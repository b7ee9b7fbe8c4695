"""The ledger of ``stratos admin``: its chain verified, its copy made, and put back into a Redis that was emptied."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from stratos.cli.stores import StoreTarget
from stratos.common.errors import BadRequest
from stratos.common.ids import new_incarnation
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.recovery.chain_check import ChainCheck, ChainReport
from stratos.store.ledger.recovery.ledger_copy import LedgerCopy
from stratos.store.ledger.recovery.rebooking import book_again
from stratos.store.ledger.sealer import Sealer, SealLimits
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import UnsealedEntries
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import opened_store

_TIMEOUT_S = 60.0
"""A tenant is read in one step, and none of these commands is in a request's path."""


@dataclass(frozen=True, slots=True)
class _Ledger:
    redis: Redis
    config: RecordStoreConfig
    segments: SegmentStore


@asynccontextmanager
async def _open(target: StoreTarget) -> AsyncIterator[_Ledger]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(target.redis_url, timeout_s=_TIMEOUT_S))
        config = ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url)
        objects = await stack.enter_async_context(opened_store(config))
        yield _Ledger(redis, RecordStoreConfig(prefix=target.prefix), SegmentStore(objects))


async def has_segments(target: StoreTarget) -> bool:
    """Whether the object store has a ledger, be it one that Redis does not know."""
    async with _open(target) as one:
        return await one.segments.head() is not None


async def verify_chain(target: StoreTarget) -> ChainReport:
    """Walk along the chain; raises ``DependencyDown`` where a store does not answer."""
    async with _open(target) as one:
        unsealed, usage = UnsealedEntries(one.redis, one.config), UsageReader(one.redis, one.config)
        return await ChainCheck(Chain(one.redis, one.config), one.segments, unsealed, usage).run()


async def export_ledger(target: StoreTarget, path: Path, store_id: str) -> int:
    """Write a copy of the ledger into a file, mode 0600; returns how many lines it has."""
    async with _open(target) as one:
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                return await LedgerCopy(one.redis, one.config, new_incarnation()).export(file, store_id)
        except OSError as error:
            raise BadRequest(f"{path} cannot be written: {error.strerror}") from error


async def fill_ledger(target: StoreTarget, path: Path | None, store_id: str, is_there: bool) -> None:
    """Put a copy into a Redis that was emptied, and book what was sealed after it.

    Args:
        target: where stores are.
        path: of the copy; ``None`` books all segments.
        store_id: of the store that this Redis becomes.
        is_there: it is that store already, and has a ledger of its own.

    Raises:
        BadRequest: the copy is not whole, of another store, or not needed.
    """
    if is_there and path is not None:
        raise BadRequest("Redis holds this store, with its ledger; a copy would take its place", param="--ledger")
    if is_there:
        return
    async with _open(target) as one:
        copy = LedgerCopy(one.redis, one.config, new_incarnation())
        if path is not None:
            await copy.restore(path, store_id)
        elif await RecordStore(one.redis, one.config).marker() is not None:
            await copy.clear()  # of another store, whose chain has no end in this object store
        chain, store = Chain(one.redis, one.config), LedgerStore(one.redis, one.config, segments=one.segments)
        unsealed = UnsealedEntries(one.redis, one.config)
        sealer = Sealer(unsealed, chain, one.segments, SealLimits(), new_incarnation(), time.time)
        await book_again(chain, one.segments, store, sealer)
