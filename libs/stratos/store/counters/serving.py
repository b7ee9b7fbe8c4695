"""Which revisions each living gateway serves, as it says itself: requests go over to none that one of them lacks.

<prefix>:serving    hash, gateway -> digests with commas; fields of gateways that are forgotten are taken out

A gateway lives by ``<prefix>:gateways``, where each one is heard several times a second (``counters.leases``).  One
that lives and says nothing is of an older version, or has just begun.

While Redis is away none is heard, and all of them live: until one is heard again there is no answer, and from then on
those that were heard together at last count (``<prefix>:unheard``), until each has had the time to be heard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

LIVES_S = 10
"""A gateway that was not heard for so long is not waited for: dozens of its calls are missing. One that only stood
still goes on with the weights that it knew, all of whose revisions are served still."""
_KEPT_S = 300
_AWAY_S = 5
"""No gateway at all was heard for so long: Redis was away just now. Those of the last moment before count as heard
until ``LIVES_S``, so it may be more than leases take for an outage."""
_SAY = f"""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], {_KEPT_S})
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if name ~= ARGV[1] and redis.call('HEXISTS', KEYS[2], name) == 0 then redis.call('HDEL', KEYS[1], name) end
end
"""
# Answers: name and digests of each gateway that lives; without digests "-". False where none was heard.
_LIVING = f"""
local time, found, last = redis.call('TIME'), {{}}, 0
local now = time[1] * 1000000 + time[2]
local heard = redis.call('HGETALL', KEYS[2])
for f = 1, #heard, 2 do
  local at, till = tonumber(heard[f + 1]), tonumber(redis.call('HGET', KEYS[3], heard[f]) or 0)
  last = math.max(last, at)
  if at + {LIVES_S}000000 >= now or till > now then
    table.insert(found, heard[f])
    table.insert(found, redis.call('HGET', KEYS[1], heard[f]) or '-')
  end
end
return last + {_AWAY_S}000000 >= now and found
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
        self._keys = [f"{config.prefix}:serving", f"{config.prefix}:gateways", f"{config.prefix}:unheard"]
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

        Raises:
            DependencyDown: also where no gateway was heard since Redis was away.
        """
        with translate_redis_errors():
            answer: Any = await self._living(self._keys, [])
        if answer is None:
            raise DependencyDown("Redis was away: which gateways live is known once they are heard again")
        found = zip(answer[::2], (set(text.split(",")) for text in answer[1::2]), strict=True)
        return sorted(
            name
            for name, served in found
            if "-" in served or (not served.isdisjoint({*wanted, *known}) and not served.issuperset(wanted))
        )
