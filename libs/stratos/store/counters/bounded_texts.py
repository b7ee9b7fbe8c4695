"""Texts of tenants in Redis, bounded by bytes over all tenants; what has the lowest score goes first.

<key>          hash, <tenant id>/<name> -> text
<key>:<order>  sorted set of the same names, by score: the server's milliseconds of a time that the owner chooses
<key>:bytes    bytes of all of them, with what each costs beside its text
"""

from __future__ import annotations

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_SCAN_COUNT = 500
# What scripts of such texts begin with. A script that changes something ends with `save()`.
_HEAD = """
local total = tonumber(redis.call('GET', KEYS[3]) or '0')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function drop(name)
  local size = redis.call('HSTRLEN', KEYS[1], name)
  if redis.call('HDEL', KEYS[1], name) == 1 then total = math.max(0, total - size - 2 * #name - 200) end
  redis.call('ZREM', KEYS[2], name)
end
local function put(name, text, score)
  drop(name)
  redis.call('HSET', KEYS[1], name, text)
  redis.call('ZADD', KEYS[2], score, name)
  total = total + #text + 2 * #name + 200
end
local function trim(last, most)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', last, 'LIMIT', 0, 256)) do drop(name) end
  while total > most do
    local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not first then break end
    drop(first)
  end
end
local function save() redis.call('SET', KEYS[3], string.format('%.0f', total)) end
"""
_DROP = "for _, name in ipairs(ARGV) do drop(name) end\nsave()"


class BoundedTexts:
    """The keys of one kind of texts, and scripts over them.

    Args:
        redis: with decoded answers.
        config: where records lie.
        name: of the hash, below the records.
        order: of the sorted set.
        store_id: of the store that takes and gives them; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, name: str, order: str, store_id: StoreId) -> None:
        self._redis, self._config, self._store_id = redis, config, store_id
        head = f"{config.prefix}:{name}"
        self.keys = [head, f"{head}:{order}", f"{head}:bytes"]
        self._drop = self.script(_DROP)

    def script(self, text: str) -> GuardedScript:
        """A script that may call ``drop``, ``put``, ``trim`` and ``save``, and knows ``now``; its keys are ``keys``."""
        return GuardedScript(self._redis, self._config, _HEAD + text, self._store_id)

    async def forget(self, tenant_id: str) -> None:
        """Remove all texts of a tenant.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        with translate_redis_errors():
            names = [name async for name, _ in self._redis.hscan_iter(self.keys[0], f"{tenant_id}/*", _SCAN_COUNT)]
            for begin in range(0, len(names), _SCAN_COUNT):
                await self._drop(self.keys, names[begin : begin + _SCAN_COUNT])
