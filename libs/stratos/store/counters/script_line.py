"""A script that is called many times a second: on a connection of its own, packed by hand, at a third of the cost of
``GuardedScript``, which is for all others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from stratos.store.counters.guard import CHECK, StoreId, any_store, known
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import BROKEN, DEFAULT_TIMEOUT_S


class ScriptLine:
    """Belongs to the event loop.

    Args:
        redis: with decoded answers; one of its connections is kept.
        config: where the store's marker lies.
        text: of the script; all its keys are declared.
        store_id: of the store that is followed; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, text: str, store_id: StoreId = any_store) -> None:
        self._redis = redis
        self._text = CHECK + text
        self._sha = redis.register_script(self._text).sha.encode()
        self._marker = f"{config.prefix}:store".encode()
        self._store_id = store_id
        self._connection: Any = None
        self._calling = asyncio.Lock()

    async def __call__(self, keys: Sequence[bytes], args: Sequence[bytes]) -> object:
        """Run it; called within ``translate_redis_errors``, and tried again as a client of ``open_redis`` does.

        Raises:
            DependencyDown: it is not known yet which store is followed.
        """
        own = known(self._store_id).encode()
        command = _packed((b"EVALSHA", self._sha, b"%d" % (len(keys) + 1), *keys, self._marker, *args, own))
        async with self._calling:
            try:
                return await self._twice(command)
            except NoScriptError:
                await self._redis.script_load(self._text)
                return await self._twice(command)

    async def _twice(self, command: bytes) -> object:
        try:
            return await self._exchange(command)
        except BROKEN:
            return await self._exchange(command)

    async def _exchange(self, command: bytes) -> object:
        """Ask and be answered; a connection that was left in between is not used again."""
        async with asyncio.timeout(DEFAULT_TIMEOUT_S):
            if self._connection is None:
                pool: Any = self._redis.connection_pool
                self._connection = await pool.get_connection()
                self._connection.socket_timeout = None  # this one bounds both halves
            await self._connection.send_packed_command(command, check_health=False)
            return await self._connection.read_response()


def _packed(parts: Sequence[bytes]) -> bytes:
    found = [b"*%d\r\n" % len(parts)]
    for part in parts:
        found += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(found)
