"""Moves texts of stream records to the object store before a tenant's room in Redis is used up, or once they are old.

<prefix>:streams:tenants           sorted set of tenants with records, by the milliseconds of the next look at each
<prefix>:streams:<tenant>:settled  where that look begins
<prefix>:streams:objects           sorted set of objects, by the milliseconds at which each one is looked at again

Any gateway looks, one at a time at a tenant.  An object is planned before it is written, so what a gateway leaves
half-way is deleted.  Texts leave Redis in the step that says where they are, and only if they are still those that were
read: of a gateway that is killed at any moment the record is whole, in the one place or the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.common.errors import NotFound, StratosError
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.object_store import ObjectStore
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import spill_scripts as scripts
from stratos.store.sealed.moved_texts import (
    MOST_RECORDS,
    MovedRecord,
    OnEvent,
    new_segment,
    nothing_counted,
    pack_segment,
    segment_key,
    streams_of,
    tenant_folder,
)

_log = logging.getLogger(__name__)
_MOST_TENANTS, _MOST_OBJECTS = 16, 16
"""At a time."""
_MOST_BYTES = 512 * 1024
"""Texts of a segment, and one more record."""
_STAYING = 0.75
"""Part of the bound that stays, so that one move makes room for many streams."""
_QUIET = 0.25
"""Part of it below which a tenant is seldom looked at."""
_MOST_IDLE = 16
"""Looks of one go that find nothing: all that is left are newest blocks of streams that run."""
_CLAIM_S, _UPLOAD_S, _GRACE_S, _RETRY_S = 30.0, 3600.0, 60.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillBounds:
    """When texts of records move."""

    tenant_bytes: int
    """Bytes of a tenant in Redis over which the oldest ones do."""
    after_s: float
    """Time after the last write of a record."""
    kept_s: float
    """Time for which records are kept."""
    poll_s: float
    moves: bool = True
    """Else objects that no record needs any more are deleted, and nothing else is done."""


class StreamSpill:
    """Belongs to the event loop.

    Args:
        redis: with decoded answers.
        config: where records lie.
        bounds: when texts move.
        keys: of a tenant, as the scripts of records take them.
        sub_key: of a tenant, for records of streams; ``None`` where nothing of it can be kept.
        objects: where texts go.
        store_id: of the store that takes and gives them; ``None`` before it is known.
        on_event: told how many records were moved.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        bounds: SpillBounds,
        keys: Callable[[str], Sequence[str]],
        sub_key: Callable[[str], bytes | None],
        objects: ObjectStore,
        store_id: StoreId = any_store,
        on_event: OnEvent = nothing_counted,
    ) -> None:
        self._head = f"{config.prefix}:streams"
        self._bounds = bounds
        self._keys = keys
        self._sub_key = sub_key
        self._objects = objects
        self._on_event = on_event

        def script(text: str) -> GuardedScript:
            return GuardedScript(redis, config, text, store_id)

        self._due_tenants, self._looked = script(scripts.DUE_TENANTS), script(scripts.LOOKED)
        self._look, self._commit, self._plan = script(scripts.LOOK), script(scripts.COMMIT), script(scripts.PLAN)
        self._due, self._needed, self._deleted = (
            script(text) for text in (scripts.DUE, scripts.IS_NEEDED, scripts.DELETED)
        )

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._bounds.poll_s)
            try:
                await self.turn()
            except (StratosError, RedisError) as error:
                _log.debug("records of streams are moved later: %s", error)
                await asyncio.sleep(_RETRY_S)

    async def turn(self) -> None:
        """Look at tenants that are due, and at objects; raises ``DependencyDown``."""
        due: Any = ()
        if self._bounds.moves:
            due = await self._run(self._due_tenants, "", _MOST_TENANTS, int(1000 * _CLAIM_S))
        for tenant_id in due:
            await self._run(self._looked, tenant_id, tenant_id, int(1000 * await self._move(tenant_id)))
        while await self.delete_due_objects():
            pass

    async def forget(self, tenant_id: str) -> None:
        """Remove the objects of a tenant that is deleted; what is being written for it has no record, and goes then."""
        for found in await self._objects.list_all(tenant_folder(tenant_id)):
            await self._objects.delete(found.key)
            await self._run(self._deleted, tenant_id, found.key)

    async def delete_due_objects(self) -> int:
        """Delete objects that no record needs any more; how many there were."""
        due: Any = await self._run(self._due, "", _MOST_OBJECTS)
        for name in due:
            _, tenant_id, segment = name.split("/")
            try:
                streams = await streams_of(self._objects, name)
                if await self._run(self._needed, tenant_id, segment, name, int(1000 * _GRACE_S), *streams):
                    continue
                await self._objects.delete(name)
            except NotFound:
                pass  # the object store has lost it, or another gateway was quicker
            await self._run(self._deleted, tenant_id, name)
        return len(due)

    async def _move(self, tenant_id: str) -> float:
        """Move what is over the tenant's bound, or old; seconds until the next look."""
        bounds, place, total, freed, idle = self._bounds, -1, 0, 0, 0
        most = bounds.tenant_bytes
        while idle < _MOST_IDLE and (key := self._sub_key(tenant_id)) is not None:
            args = int(1000 * bounds.kept_s), int(1000 * bounds.after_s), _MOST_BYTES, MOST_RECORDS, place
            answer: Any = await self._run(self._look, tenant_id, most, int(_STAYING * most), *args)
            total, place, found = answer
            records = [MovedRecord(row[0], dict(zip(row[1::2], row[2::2], strict=True))) for row in found]
            idle = 0 if records else idle + 1
            if records:
                moved = await self._write(key, tenant_id, records)
                total, freed = total - moved, freed + moved
            if place < 0:
                break
        if total <= _QUIET * most:
            return max(bounds.poll_s, bounds.after_s / 4)
        return bounds.poll_s if freed else 10 * bounds.poll_s

    async def _write(self, key: bytes, tenant_id: str, records: Sequence[MovedRecord]) -> int:
        """Move texts of records; bytes that Redis has no more."""
        segment = new_segment()
        name = segment_key(tenant_id, segment)
        content, places = await asyncio.to_thread(pack_segment, key, tenant_id, segment, records)
        await self._run(self._plan, tenant_id, name, int(1000 * _UPLOAD_S))
        await self._objects.put(name, content)
        rows = []
        for record, (offset, length) in zip(records, places, strict=True):
            blocks, nonces = (
                record.blocks(),
                {field: text[: scripts.NONCE_CHARS] for field, text in record.texts.items()},
            )
            first, behind = (blocks[0], blocks[-1] + 1) if blocks else (0, 0)
            rows.append((record.stream_id, offset, length, first, behind, record.letters(), list(nonces.items())))
        answer: Any = await self._run(self._commit, tenant_id, segment, name, int(1000 * _GRACE_S), orjson.dumps(rows))
        self._on_event("spilled", int(answer[0]))
        return int(answer[1])

    async def _run(self, script: GuardedScript, tenant_id: str, *args: str | int | bytes) -> object:
        with translate_redis_errors():
            return await script(spill_keys(self._head, self._keys(tenant_id), tenant_id), args)


def spill_keys(head: str, keys: Sequence[str], tenant_id: str) -> list[str]:
    """Names in Redis that the scripts take.

    Args:
        head: of all names of records.
        keys: of the tenant's records.
        tenant_id: whose.
    """
    return [*keys, f"{head}:tenants", f"{head}:{tenant_id}:settled", f"{head}:objects"]
