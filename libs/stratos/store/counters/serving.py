"""Which revisions each living gateway serves, as it says itself: requests go over to none that one of them lacks.

<prefix>:serving    hash, gateway -> digests with commas; fields of gateways that are forgotten are taken out

A gateway lives by ``<prefix>:gateways``, where each one is heard several times a second (``counters.leases``).  One
that lives and says nothing is of an older version, or has just begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

LIVES_S = 10
"""A gateway that was not heard for so long is not waited for: dozens of its calls are missing. One that only stood
still goes on with the weights that it knew, all of whose revisions are served still."""
_KEPT_S = 300
_SAY = f"""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], {_KEPT_S})
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name ~= ARGV[1] and redis.call('HEXISTS', KEYS[2], name) == 0 then redis.call('HDEL', KEYS[1], name) end
end
"""
# Answers: name and digests of each gateway that lives; without digests "-".
_LIVING = f"""
local time, found = redis.call('TIME'), {{}}
local heard = redis.call('HGETALL', KEYS[2])
for f = 1, #heard, 2 do
  if tonumber(heard[f + 1]) + {LIVES_S}000000 >= time[1] * 1000000 + time[2] then
    table.insert(found, heard[f])
    table.insert(found, redis.call('HGET', KEYS[1], heard[f]) or '-')
  end
end
return found
"""


class ServingStore:
    """Belongs to one gateway; both methods raise ``DependencyDown`` where Redis does not answer, or is another store.

    Args:
        redis: with decoded answers.
        config: where records lie.
        gateway: its name among those that are heard.
        store_id: of the store that is meant; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, gateway: str, store_id: StoreId = any_store) -> None:
        self._keys = [f"{config.prefix}:serving", f"{config.prefix}:gateways"]
        self._gateway = gateway
        self._say = GuardedScript(redis, config, _SAY, store_id)
        self._living = GuardedScript(redis, config, _LIVING, store_id)

    async def say(self, digests: Iterable[str]) -> None:
        """Write which revisions this gateway serves now."""
        with translate_redis_errors():
            await self._say(self._keys, [self._gateway, ",".join(sorted(digests))])

    async def lacking(self, wanted: Collection[str], known: Collection[str]) -> list[str]:
        """Living gateways at which requests would find a revision missing.

        Args:
            wanted: digests where requests are to go.
            known: digests where they go now. A gateway that serves none of these and of ``wanted`` is of other models.
        """
        with translate_redis_errors():
            answer: Any = await self._living(self._keys, [])
        found = zip(answer[::2], (set(text.split(",")) for text in answer[1::2]), strict=True)
        return sorted(
            name
            for name, served in found
            if "-" in served or (not served.isdisjoint({*wanted, *known}) and not served.issuperset(wanted))
        )
