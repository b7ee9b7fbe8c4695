"""When each key was last used: noted in memory, written to Redis every few seconds, off the path of requests.

<prefix>:key_use   hash, key id -> seconds since the epoch
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_log = logging.getLogger(__name__)
_INTERVAL_S = 5.0
_LATER = """
for i = 1, #ARGV, 2 do
  local old = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > old then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
"""


class KeyUse:
    """Notes and reads uses.

    Args:
        redis: with decoded answers.
        config: where records lie.
        store_id: of the store that takes the notes and gives them; ``None`` before it is known.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        store_id: StoreId = any_store,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._name = f"{config.prefix}:key_use"
        self._write = GuardedScript(redis, config, _LATER, store_id)
        self._reads = GuardedReads(redis, config, store_id)
        self._wall_clock = wall_clock
        self._noted: dict[str, int] = {}

    def note_use(self, key_id: str) -> None:
        """A key was used now."""
        self._noted[key_id] = int(self._wall_clock())

    async def run(self) -> None:
        """Root task: write what was noted; an outage loses nothing but time."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.flush()
            except (DependencyDown, RedisError) as error:
                _log.debug("uses of keys are written later: %s", error)

    async def flush(self) -> None:
        """Write what was noted; raises ``DependencyDown`` and keeps it."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        try:
            with translate_redis_errors():
                await self._write([self._name], [part for item in noted.items() for part in item])
        except DependencyDown:
            self._noted = {**noted, **self._noted}
            raise

    async def last_uses(self, key_ids: Sequence[str]) -> list[int | None]:
        """Seconds since the epoch of each key's last use; ``None`` for one that never was."""
        if not key_ids:
            return []
        await self._reads.check()
        with translate_redis_errors():
            found: Any = await self._redis.hmget(self._name, list(key_ids))
        return [None if at is None else int(at) for at in found]
