"""Tokens of tenants at all gateways, and the tenants that have series of their own in metrics.

<prefix>:tenant_tokens   sorted set, tenant id -> weighted tokens
<prefix>:tenant_series   hash: ids, those chosen last, the largest first; at, when; since, where weights begin

All gateways take the same choice.  A token counts half as much after ``HALF_LIFE_S`` as a new one: new ones weigh more
and more, so nothing has to be changed as time passes (forward decay: Cormode, Shkapenyuk, Srivastava and Xu, 2009).
"""

from __future__ import annotations

from collections.abc import Mapping

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

HALF_LIFE_S = 6 * 3600
MAX_TENANTS = 10_000
"""Tenants that are counted, the largest ones."""
_MAX_HALVINGS = 300
"""Weights are begun again before numbers overflow."""
_KEPT_S = 30 * 24 * 3600
# ARGV: how many are chosen, seconds between two choices, then id and tokens of each.
_ADD = f"""
local now, most = tonumber(redis.call('TIME')[1]), tonumber(ARGV[1])
local since = tonumber(redis.call('HGET', KEYS[2], 'since') or now)
if (now - since) / {HALF_LIFE_S} > {_MAX_HALVINGS} then
  local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #all, 2 do
    redis.call('ZADD', KEYS[1], tonumber(all[i + 1]) / 2 ^ ((now - since) / {HALF_LIFE_S}), all[i])
  end
  since = now
end
local weight = 2 ^ ((now - since) / {HALF_LIFE_S})
for i = 3, #ARGV, 2 do redis.call('ZINCRBY', KEYS[1], ARGV[i + 1] * weight, ARGV[i]) end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -{MAX_TENANTS + 1})
redis.call('HSET', KEYS[2], 'since', since)
local at = tonumber(redis.call('HGET', KEYS[2], 'at') or -math.huge)
if math.abs(now - at) >= tonumber(ARGV[2]) then
  -- Who is chosen stays for a quarter of the ranks longer, so that two of equal size do not change places every time.
  local chosen, room = {{}}, most
  for id in string.gmatch(redis.call('HGET', KEYS[2], 'ids') or '', '%S+') do chosen[id] = true end
  local near = redis.call('ZREVRANGE', KEYS[1], 0, most + math.floor(most / 4) - 1)
  for _, id in ipairs(near) do if chosen[id] and room > 0 then room = room - 1 else chosen[id] = nil end end
  local ids = {{}}
  for _, id in ipairs(near) do
    if chosen[id] then table.insert(ids, id)
    elseif room > 0 then table.insert(ids, id) room = room - 1 end
  end
  redis.call('HSET', KEYS[2], 'ids', table.concat(ids, ' '), 'at', now)
end
redis.call('EXPIRE', KEYS[1], {_KEPT_S})
redis.call('EXPIRE', KEYS[2], {_KEPT_S})
return redis.call('HGET', KEYS[2], 'ids')
"""
_FORGET = "redis.call('ZREM', KEYS[1], ARGV[1])"


class TenantTokenStore:
    """Both methods raise ``DependencyDown`` where Redis does not answer, or is another store.

    Args:
        redis: with decoded answers.
        config: where records lie.
        num_chosen: tenants that have series of their own.
        interval_s: between two choices.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(
        self, redis: Redis, config: RecordStoreConfig, num_chosen: int, interval_s: float, store_id: StoreId = any_store
    ) -> None:
        self._keys = [f"{config.prefix}:tenant_tokens", f"{config.prefix}:tenant_series"]
        self._choice = [num_chosen, interval_s]
        self._add = GuardedScript(redis, config, _ADD, store_id)
        self._forget = GuardedScript(redis, config, _FORGET, store_id)

    async def add(self, tokens: Mapping[str, int]) -> list[str]:
        """Count tokens by tenant id; returns the ids of the tenants that were chosen last, the largest first."""
        counted = [part for item in tokens.items() for part in item]
        with translate_redis_errors():
            found = await self._add(self._keys, [*self._choice, *counted])
        return str(found).split()

    async def forget(self, tenant: str) -> None:
        """Remove a tenant that is deleted."""
        with translate_redis_errors():
            await self._forget(self._keys[:1], [tenant])
