"""Receipts in Redis, the latest ones, bounded by bytes and by age.

<prefix>:ledger:receipts         hash, <tenant>/<request id> -> <rank>|<JSON>
<prefix>:ledger:receipts:order   sorted set of the same names, by the server's milliseconds at which each was written
<prefix>:ledger:receipts:bytes   bytes of all of them, with what each costs beside its text
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.receipt import RequestReceipt
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_SCAN_COUNT = 500
_HEAD = """
local total = tonumber(redis.call('GET', KEYS[3]) or '0')
local function drop(name)
  local size = redis.call('HSTRLEN', KEYS[1], name)
  if redis.call('HDEL', KEYS[1], name) == 1 then total = math.max(0, total - size - 2 * #name - 200) end
  redis.call('ZREM', KEYS[2], name)
end
"""
_TAIL = "redis.call('SET', KEYS[3], string.format('%.0f', total))"
# KEYS: receipts, their order, their bytes. ARGV: most bytes, seconds that they are kept, then name, rank, text of each.
_PUT = f"""{_HEAD}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 3, #ARGV, 3 do
  local name, rank, text = ARGV[i], ARGV[i + 1], ARGV[i + 1] .. '|' .. ARGV[i + 2]
  local old = redis.call('HGET', KEYS[1], name)
  if not old or tonumber(string.match(old, '^%d+')) <= tonumber(rank) then
    if old then drop(name) end
    redis.call('HSET', KEYS[1], name, text)
    redis.call('ZADD', KEYS[2], now, name)
    total = total + #text + 2 * #name + 200
  end
end
local before = '(' .. string.format('%.0f', now - ARGV[2] * 1000)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', before, 'LIMIT', 0, 256)) do drop(name) end
while total > tonumber(ARGV[1]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then break end
  drop(oldest)
end
{_TAIL}
"""
_DROP = f"{_HEAD}\nfor _, name in ipairs(ARGV) do drop(name) end\n{_TAIL}"


class ReceiptStore:
    """Writes and reads.

    Args:
        redis: with decoded answers.
        config: where records lie.
        max_bytes: of all receipts of all tenants; the oldest go first.
        kept_s: after which a receipt is gone.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(
        self, redis: Redis, config: RecordStoreConfig, max_bytes: int, kept_s: float, store_id: StoreId = any_store
    ) -> None:
        self._redis = redis
        head = f"{config.prefix}:ledger:receipts"
        self._keys = [head, f"{head}:order", f"{head}:bytes"]
        self._bounds = [max_bytes, int(kept_s)]
        self._put = GuardedScript(redis, config, _PUT, store_id)
        self._drop = GuardedScript(redis, config, _DROP, store_id)
        self._reads = GuardedReads(redis, config, store_id)

    async def put(self, receipts: Sequence[RequestReceipt]) -> None:
        """Write receipts; one that another of a higher rank is there for changes nothing.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        args = [part for one in receipts for part in (_name(one.tenant, one.request_id), one.rank, one.text)]
        with translate_redis_errors():
            await self._put(self._keys, [*self._bounds, *args])

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The sections of a tenant's receipt; ``None`` where there is none, or none any more."""
        await self._reads.check()
        with translate_redis_errors():
            stored: Any = await self._redis.hget(self._keys[0], _name(tenant, request_id))
        if stored is None:
            return None
        sections: dict[str, Any] = json.loads(str(stored).partition("|")[2])
        return sections

    async def forget(self, tenant: str) -> None:
        """Remove all receipts of a tenant that is deleted."""
        with translate_redis_errors():
            pattern = f"{_name(tenant, '')}*"
            found = [name async for name, _ in self._redis.hscan_iter(self._keys[0], pattern, count=_SCAN_COUNT)]
            for begin in range(0, len(found), _SCAN_COUNT):
                await self._drop(self._keys, found[begin : begin + _SCAN_COUNT])


def _name(tenant: str, request_id: str) -> str:
    return f"{tenant}/{request_id}"
