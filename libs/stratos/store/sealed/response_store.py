"""Responses that clients come back to, for all gateways: sealed, with an end, bounded by bytes for each tenant.

<prefix>:responses:<tenant>         hash, id -> text: "i" and the sealed content as base64, or "o<bytes>" and a key of
                                    the object store, where larger ones are
<prefix>:responses:<tenant>:until   sorted set of the ids, by the milliseconds at which each one ends
<prefix>:responses:<tenant>:bytes   bytes of all of them, with those in the object store
<prefix>:responses:objects          sorted set of those keys, by the milliseconds at which each one is to be deleted

An object is in that set before it is written, so none outlives its time, however its gateway ends.  Where a tenant has
no room, its own oldest responses go first.
"""

from __future__ import annotations

import asyncio
import base64
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import DependencyDown, NotFound
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.data_keys import BrokenSeal, Purpose, seal, unseal
from stratos.store.object_store import ObjectStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import response_scripts as scripts
from stratos.store.sealed.answer_store import SubKey

_ID = re.compile(r"resp_[0-9a-f]{24}")
_MAX_PLAIN_BYTES = 64 * 1024 * 1024
"""Of one response once it is unpacked: what was kept here is never larger."""
_DUE_COUNT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBounds:
    """How long responses are kept, and how much of them."""

    kept_s: float
    tenant_bytes: int
    inline_bytes: int
    """Sealed bytes up to which one lies in Redis, where there is an object store."""


def is_response_id(text: str) -> bool:
    """Whether a text is the id of a response that could be kept."""
    return _ID.fullmatch(text) is not None


class ResponseStore:
    """Belongs to the event loop. Every method raises ``DependencyDown`` where a store does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        bounds: of what is kept.
        sub_key: of a tenant.
        objects: where large ones go; ``None`` keeps all in Redis.
        has_room: raises ``DependencyDown`` where Redis has none.
        store_id: of the store that takes and gives them; ``None`` before it is known.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        bounds: ResponseBounds,
        sub_key: SubKey,
        objects: ObjectStore | None,
        has_room: Callable[[], Awaitable[None]],
        store_id: StoreId = any_store,
    ) -> None:
        self._redis = redis
        self._head = f"{config.prefix}:responses"
        self._bounds = bounds
        self._sub_key = sub_key
        self._objects = objects
        self._has_room = has_room
        self._reads = GuardedReads(redis, config, store_id)

        def script(text: str) -> GuardedScript:
            return GuardedScript(redis, config, scripts.HEAD + text, store_id)

        self._put, self._find, self._drop = script(scripts.PUT), script(scripts.FIND), script(scripts.DROP)
        self._plan, self._due, self._deleted = script(scripts.PLAN), script(scripts.DUE), script(scripts.DELETED)

    async def check(self, tenant_id: str) -> None:
        """Say before anything is computed whether a response of the tenant could be kept."""
        self._key(tenant_id)
        await self._reads.check()
        await self._has_room()

    async def put(self, tenant_id: str, response_id: str, content: bytes) -> None:
        """Keep a response; the tenant's oldest ones go where there is no room.

        Raises:
            DependencyDown: it cannot be kept now, or is larger than all that the tenant may keep.
        """
        key, bounds = self._key(tenant_id), self._bounds
        place = _place(tenant_id, response_id)
        sealed = await asyncio.to_thread(lambda: seal(key, zlib.compress(content, 1), place))
        if 2 * len(sealed) > bounds.tenant_bytes:
            raise DependencyDown(f"a response of {len(sealed)} bytes is larger than what a tenant may keep")
        ttl_ms = max(1, int(bounds.kept_s * 1000))
        if self._objects is None or len(sealed) <= bounds.inline_bytes:
            text = "i" + base64.b64encode(sealed).decode()
        else:
            object_key = f"responses/{tenant_id}/{response_id}"
            await self._run(self._plan, tenant_id, [object_key, ttl_ms + 60_000])
            await self._objects.put(object_key, sealed)
            text = f"o{len(sealed)}|{object_key}"
        await self._run(self._put, tenant_id, [bounds.tenant_bytes, ttl_ms, response_id, text])

    async def find(self, tenant_id: str, response_id: str) -> bytes | None:
        """A response of the tenant; ``None`` where there is none, or none any more."""
        if not is_response_id(response_id):
            return None
        key = self._key(tenant_id)
        text: Any = await self._run(self._find, tenant_id, [response_id])
        if text is None:
            return None
        try:
            sealed = await self._sealed(str(text))
            return await asyncio.to_thread(lambda: _unpacked(unseal(key, sealed, _place(tenant_id, response_id))))
        except (BrokenSeal, NotFound, ValueError, zlib.error):
            return None  # altered, cut, or just deleted: as if it were not there

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Remove a response; whether there was one."""
        if not is_response_id(response_id):
            return False
        return bool(await self._run(self._drop, tenant_id, [response_id]))

    async def forget(self, tenant_id: str) -> None:
        """Remove all responses of a tenant that is deleted: without its key they are noise already."""
        await self._reads.check()
        while True:
            with translate_redis_errors():
                names: Any = await self._redis.zrange(self._keys(tenant_id)[1], 0, 499)
            if not names:
                return
            await self._run(self._drop, tenant_id, names)

    async def delete_due_objects(self) -> int:
        """Delete some objects whose time is over; how many there were."""
        if self._objects is None:
            return 0
        due: Any = await self._run(self._due, "", [_DUE_COUNT])
        for key in due:
            await self._objects.delete(key)
        if due:
            await self._run(self._deleted, "", due)
        return len(due)

    async def _run(self, script: GuardedScript, tenant_id: str, args: list[str | int | float]) -> object:
        with translate_redis_errors():
            return await script(self._keys(tenant_id), args)

    def _keys(self, tenant_id: str) -> list[str]:
        own = f"{self._head}:{tenant_id}"
        return [own, f"{own}:until", f"{own}:bytes", f"{self._head}:objects"]

    def _key(self, tenant_id: str) -> bytes:
        key = self._sub_key(tenant_id, Purpose.STORED_RESPONSES)
        if key is None:
            raise DependencyDown("the tenant has no data key yet")
        return key

    async def _sealed(self, text: str) -> bytes:
        if text.startswith("i"):
            return base64.b64decode(text[1:], validate=True)
        size, _, key = text[1:].partition("|")
        if self._objects is None:
            raise DependencyDown("this gateway has no object store, in which this response is")
        return await self._objects.read(key, 0, int(size))


def _unpacked(content: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(content, _MAX_PLAIN_BYTES)
    if not unpacker.eof:
        raise ValueError("it is cut, or larger than any response")
    return plain


def _place(tenant_id: str, response_id: str) -> bytes:
    return f"response {response_id} of {tenant_id}".encode()
