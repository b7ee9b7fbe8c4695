"""Record stores in a real Redis, and snapshots that follow them, without the services around."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from stratos.common.clock import SystemClock
from stratos.store.authentication import KeyCheck
from stratos.store.key_store import KeyStore
from stratos.store.keys import Peppers
from stratos.store.records.adoption import init_store
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.manifest import ManifestStore
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import RecordStoreConfig, SnapshotConfig
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store

PEPPERS = Peppers(current="0123456789abcdef")
QUICK = SnapshotConfig(poll_s=0.02)


def manifests_in(folder: Path) -> ManifestStore:
    """The manifest of an object store in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return ManifestStore(open_store(ObjectStoreConfig(url=f"file://{folder}")))


@dataclass
class Follower:
    """What a gateway has: a snapshot that is followed, and the check of keys on it."""

    follower: SnapshotFollower
    keys: KeyCheck

    @property
    def snapshot(self) -> FollowedSnapshot:
        return self.follower.snapshot


@asynccontextmanager
async def following(
    url: str, config: SnapshotConfig = QUICK, *, peppers: Peppers = PEPPERS, prefix: str = "stratos", **check: Any
) -> AsyncIterator[Follower]:
    """Follow the store at ``url`` with a connection of its own, as another process would."""
    async with open_redis(url) as redis:
        store = RecordStore(redis, RecordStoreConfig(prefix=prefix))
        follower = SnapshotFollower(FollowedSnapshot(), store, SystemClock(), config)
        task = asyncio.create_task(follower.run())
        try:
            await follower.first_look()
            yield Follower(follower, KeyCheck(follower, peppers, **check))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def key_store(records: RecordStore, peppers: Peppers = PEPPERS, store_id: str = "") -> KeyStore:
    """Writes keys in the name of a test."""
    return KeyStore(RecordWriter(records, actor="test", store_id=store_id), peppers)


@dataclass
class MarkedStore:
    """A store that was set up, and its object store."""

    redis: Redis
    records: RecordStore
    manifests: ManifestStore
    keys: KeyStore
    store_id: str


async def marked_store(redis: Redis, folder: Path, config: RecordStoreConfig | None = None) -> MarkedStore:
    """Set up the store of a new installation, as ``stratos up`` does."""
    records, manifests = RecordStore(redis, config), manifests_in(folder)
    store_id = await init_store(records, manifests)
    return MarkedStore(redis, records, manifests, key_store(records), store_id)
