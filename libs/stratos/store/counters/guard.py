"""Writes that the store of the records takes alone, and reads of it alone: a Redis that was emptied or exchanged is
left as it is, and nothing that it holds is shown as ours.

What a process knows of the store is a moment old, so a write is checked within Redis, in one step with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from stratos.common.errors import DependencyDown
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import FOREIGN, FOREIGN_STORE, translate_redis_errors

CHECK = f"""
local marker, id = table.remove(KEYS), table.remove(ARGV)
if id ~= '' and redis.call('HGET', marker, 'id') ~= id then
  return redis.error_reply('{FOREIGN_STORE} this Redis holds no store, or another one')
end
"""
"""Before a script: its last key is the store's marker, its last argument the store."""
StoreId = Callable[[], str | None]


def any_store() -> str:
    """Guard of writes that no store has to take."""
    return ""


class GuardedReads:
    """Says before a read whether it would be one of the store.

    Args:
        redis: with decoded answers.
        config: where the store's marker lies.
        store_id: of the store that is followed; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, store_id: StoreId = any_store) -> None:
        self._redis = redis
        self._marker = f"{config.prefix}:store"
        self._store_id = store_id

    async def check(self) -> None:
        """Raise ``DependencyDown`` for another store, none, or before it is known which one is followed."""
        store_id = known(self._store_id)
        with translate_redis_errors():
            if store_id and await self._redis.hget(self._marker, "id") != store_id:
                raise DependencyDown(FOREIGN)


def known(store_id: StoreId) -> str:
    """The store that is followed; raises ``DependencyDown`` before it is known."""
    found = store_id()
    if found is None:
        raise DependencyDown("the store of the records has not been read yet")
    return found


class GuardedScript:
    """A Lua script that runs in one store.

    Args:
        redis: with decoded answers.
        config: where the store's marker lies.
        text: of the script; all its keys are declared.
        store_id: of the store that is followed; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, text: str, store_id: StoreId = any_store) -> None:
        self._script = redis.register_script(CHECK + text)
        self.sha = str(self._script.sha).encode()
        """Name of the script in Redis."""
        self._marker = f"{config.prefix}:store"
        self._store_id = store_id

    async def __call__(
        self, keys: Sequence[str], args: Sequence[str | int | float | bytes], *, pipeline: Pipeline | None = None
    ) -> object:
        """Run it; called within ``translate_redis_errors``, which makes ``DependencyDown`` of a foreign store.

        Raises:
            DependencyDown: it is not known yet which store is followed.
        """
        return await self._script(keys=[*keys, self._marker], args=[*args, known(self._store_id)], client=pipeline)
