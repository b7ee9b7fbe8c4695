"""Files of tenants, for all gateways: sealed bytes in the object store, what they are in Redis, bounded by tenant.

<prefix>:files:<tenant>         hash, id -> text: "o<bytes>|<key of the object>|<sealed facts, base64>"
<prefix>:files:<tenant>:until   sorted set of the ids, by the milliseconds at which each one ends
<prefix>:files:<tenant>:bytes   bytes of all of them, with those in the object store
<prefix>:files:objects          sorted set of objects, by the milliseconds at which each one is to be deleted

An object is in that set before it is written, for an hour at first: what a gateway leaves half-way is deleted.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
from redis.asyncio import Redis

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.data_keys import BrokenSeal, Purpose, seal, unseal
from stratos.store.object_store import ObjectStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import response_scripts as scripts
from stratos.store.sealed.answer_store import SubKey
from stratos.store.sealed.file_writer import PART_BYTES, SEAL_BYTES, FileWriter, open_index, open_part, sealed_range

_UPLOAD_MS = 3600 * 1000
_DUE_COUNT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """How much of files is kept."""

    tenant_bytes: int
    tenant_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file, without its bytes."""

    id: str
    filename: str
    purpose: str
    num_bytes: int = 0
    index_bytes: int = 0
    """Sealed index behind its parts; 0 without one."""
    created_unix_s: int = 0
    expires_unix_s: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts that its check found."""


def new_file_id() -> str:
    """Id of a file, as clients know its form."""
    return f"file-{secrets.token_hex(12)}"


class FileStore:
    """Belongs to the event loop. Every method raises ``DependencyDown`` where a store does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        bounds: of what is kept.
        sub_key: of a tenant.
        objects: where bytes are.
        has_room: raises ``DependencyDown`` where Redis has none.
        store_id: of the store that takes and gives them; ``None`` before it is known.
        unix_s: seconds since the epoch, by one clock for all who share the store.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        bounds: FileBounds,
        sub_key: SubKey,
        objects: ObjectStore,
        has_room: Callable[[], Awaitable[None]],
        store_id: StoreId = any_store,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._head = f"{config.prefix}:files"
        self._bounds = bounds
        self._sub_key = sub_key
        self.objects = objects
        self._has_room = has_room
        self._reads = GuardedReads(redis, config, store_id)
        self._redis = redis
        self._unix_s = unix_s

        def script(text: str) -> GuardedScript:
            return GuardedScript(redis, config, scripts.HEAD + text, store_id)

        self._put, self._find, self._drop = script(scripts.PUT_NEW), script(scripts.FIND), script(scripts.DROP)
        self._plan, self._due, self._deleted = script(scripts.PLAN), script(scripts.DUE), script(scripts.DELETED)
        self._all = script(scripts.LIST)

    async def writer(self, tenant_id: str, file_id: str) -> FileWriter:
        """Begin a file of a tenant."""
        await self._reads.check()
        await self._has_room()
        return FileWriter(self.key(tenant_id), _name(tenant_id, file_id))

    async def put(self, tenant_id: str, file: StoredFile, writer: FileWriter, kept_s: float) -> StoredFile | None:
        """Keep a file that was written; ``None`` where the tenant has no room for it."""
        now_s = int(self._unix_s())
        file = replace(
            file,
            num_bytes=writer.num_bytes,
            index_bytes=writer.index_bytes,
            created_unix_s=now_s,
            expires_unix_s=now_s + int(kept_s),
        )
        place = self.object_key(tenant_id, file.id)
        size = writer.num_stored
        await self.plan(place, _UPLOAD_MS)
        await self.objects.put(place, writer.path)
        facts = base64.b64encode(
            seal(self.key(tenant_id), orjson.dumps(asdict(file)), _facts(tenant_id, file.id))
        ).decode()
        bounds = self._bounds
        args: list[str | int | float] = [
            bounds.tenant_bytes, int(kept_s * 1000), file.id, f"o{size}|{place}|{facts}", place, bounds.tenant_files,
        ]  # fmt: skip
        if await self._run(self._put, tenant_id, args):
            return file
        await self.plan(place, 0)
        return None

    async def find(self, tenant_id: str, file_id: str) -> StoredFile | None:
        """A file of the tenant, or ``None``."""
        text: Any = await self._run(self._find, tenant_id, [file_id])
        return None if text is None else self._opened(tenant_id, file_id, str(text))

    async def list_files(self, tenant_id: str) -> list[StoredFile]:
        """All of the tenant, the newest first."""
        found: Any = await self._run(self._all, tenant_id, [])
        files = [self._opened(tenant_id, name, text) for name, text in zip(found[::2], found[1::2], strict=True)]
        kept = [file for file in files if file is not None and file.expires_unix_s > self._unix_s()]
        return sorted(kept, key=lambda file: (file.created_unix_s, file.id), reverse=True)

    async def delete(self, tenant_id: str, file_id: str) -> bool:
        """Remove a file; whether there was one."""
        return bool(await self._run(self._drop, tenant_id, [file_id]))

    async def read(self, tenant_id: str, file: StoredFile, begin: int, end: int) -> AsyncIterator[bytes]:
        """Bytes of a file from ``begin`` up to ``end``, part by part; raises ``NotFound`` where they are broken."""
        key, name, place = self.key(tenant_id), _name(tenant_id, file.id), self.object_key(tenant_id, file.id)
        for part in range(begin // PART_BYTES, -(-min(end, file.num_bytes) // PART_BYTES)):
            offset, most = sealed_range(part, 1)
            left = file.num_bytes - part * PART_BYTES
            try:
                sealed = await self.objects.read(place, offset, min(most, left + SEAL_BYTES))
                plain = await asyncio.to_thread(open_part, key, name, part, sealed)
            except (BrokenSeal, NotFound) as error:
                raise _broken() from error
            yield plain[max(0, begin - part * PART_BYTES) : max(0, end - part * PART_BYTES)]

    async def read_index(self, tenant_id: str, file: StoredFile) -> bytes:
        """Index that is kept beside a file; raises ``NotFound`` where it is broken."""
        num_parts = -(-file.num_bytes // PART_BYTES)
        place, begin = self.object_key(tenant_id, file.id), file.num_bytes + num_parts * SEAL_BYTES
        try:
            sealed = await self.objects.read(place, begin, file.index_bytes)
            return open_index(self.key(tenant_id), _name(tenant_id, file.id), sealed)
        except (BrokenSeal, NotFound) as error:
            raise _broken() from error

    async def forget(self, tenant_id: str) -> None:
        """Remove all files of a tenant that is deleted: without its key they are noise already."""
        await self._reads.check()
        while True:
            with translate_redis_errors():
                names: Any = await self._redis.zrange(self._keys(tenant_id)[1], 0, 499)
            if not names:
                return
            await self._run(self._drop, tenant_id, names)

    async def delete_due_objects(self) -> int:
        """Delete some objects whose time is over; how many there were."""
        due: Any = await self._run(self._due, "", [_DUE_COUNT])
        for key in due:
            await self.objects.delete(key)
        if due:
            await self._run(self._deleted, "", due)
        return len(due)

    async def plan(self, object_key: str, after_ms: int) -> None:
        """Let an object be deleted after a time."""
        await self._run(self._plan, "", [object_key, after_ms])

    def key(self, tenant_id: str) -> bytes:
        """The sub-key of a tenant."""
        key = self._sub_key(tenant_id, Purpose.FILES)
        if key is None:
            raise DependencyDown("the tenant has no data key yet")
        return key

    @staticmethod
    def object_key(tenant_id: str, file_id: str) -> str:
        """Where the bytes of a file are."""
        return f"files/{tenant_id}/{file_id}"

    def _opened(self, tenant_id: str, file_id: str, text: str) -> StoredFile | None:
        try:
            sealed = base64.b64decode(text.rpartition("|")[2], validate=True)
            return StoredFile(**orjson.loads(unseal(self.key(tenant_id), sealed, _facts(tenant_id, file_id))))
        except (BrokenSeal, ValueError, TypeError):
            return None  # altered, or of another version: as if it were not there

    async def _run(self, script: GuardedScript, tenant_id: str, args: list[str | int | float]) -> object:
        with translate_redis_errors():
            return await script(self._keys(tenant_id), args)

    def _keys(self, tenant_id: str) -> list[str]:
        own = f"{self._head}:{tenant_id}"
        return [own, f"{own}:until", f"{own}:bytes", f"{self._head}:objects"]


def _broken() -> NotFound:
    """Refusal of a file whose bytes are not what was kept; where they lie is no business of clients."""
    return NotFound("this file was altered, or is being deleted")


def _name(tenant_id: str, file_id: str) -> str:
    return f"{file_id} of {tenant_id}"


def _facts(tenant_id: str, file_id: str) -> bytes:
    return f"facts of file {file_id} of {tenant_id}".encode()
