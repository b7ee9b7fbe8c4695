"""Files of a tenant in a real Redis: their room comes back, and an object is kept for as long as its file."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis

from stratos.store.data_keys import Purpose
from stratos.store.local_store import LocalStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.sealed.file_store import FileBounds, FileStore, StoredFile

OWN = "stratos:files:tn_1"
ROW = b"x" * 1000


def find_key(tenant: str, purpose: Purpose) -> bytes:
    return bytes(32)


async def has_room() -> None: ...


def open_store(redis: Redis, folder: Path) -> FileStore:
    bounds = FileBounds(tenant_bytes=5000, tenant_files=10)
    return FileStore(redis, RecordStoreConfig(), bounds, find_key, LocalStore(folder), has_room)


async def is_kept(store: FileStore, name: str) -> bool:
    with await store.writer("tn_1", name) as writer:
        writer.write(ROW)
        writer.finish()
        return await store.put("tn_1", StoredFile(id=name, filename="a", purpose="batch"), writer, 600.0) is not None


async def test_room_comes_back_when_files_end_after_one_was_deleted(redis_url: str, tmp_path: Path) -> None:
    async with open_redis(redis_url) as redis:
        store = open_store(redis, tmp_path)
        assert await is_kept(store, "file-1")
        assert await is_kept(store, "file-2")
        assert await store.delete("tn_1", "file-1")
        assert await redis.pttl(f"{OWN}:bytes") > 0, "bytes end with what they count"
        await redis.delete(OWN, f"{OWN}:until")
        await redis.set(f"{OWN}:bytes", 4999)  # as versions before this one left it
        assert await is_kept(store, "file-3")


async def test_a_file_that_is_made_a_second_time_half_way_keeps_its_object(redis_url: str, tmp_path: Path) -> None:
    async with open_redis(redis_url) as redis:
        store = open_store(redis, tmp_path)
        assert await is_kept(store, "file-1")
        place = store.object_key("tn_1", "file-1")
        due_ms = await redis.zscore("stratos:files:objects", place)
        await store.plan(place, 1000)  # of the second one, which ends here
        assert await redis.zscore("stratos:files:objects", place) == due_ms
        await store.plan(place, 0)
        assert await store.delete_due_objects() == 1
