"""Whole answers in Redis, for all gateways: sealed, with an end, bounded by bytes over all tenants.

<prefix>:answers         hash, <tenant id>/<name> -> sealed answer, base64
<prefix>:answers:until   sorted set of the same names, by the server's milliseconds at which each one ends
<prefix>:answers:bytes   bytes of all of them, with what each costs beside its text

A name is a keyed hash of the request under the tenant's sub-key, so that Redis cannot even be asked whether a guessed
prompt was sent.  What ends first goes first where there is no room.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.data_keys import BrokenSeal, Purpose, seal, unseal
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_SCAN_COUNT = 500
_HEAD = """
local total = tonumber(redis.call('GET', KEYS[3]) or '0')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function drop(name)
  local size = redis.call('HSTRLEN', KEYS[1], name)
  if redis.call('HDEL', KEYS[1], name) == 1 then total = math.max(0, total - size - 2 * #name - 200) end
  redis.call('ZREM', KEYS[2], name)
end
"""
_TAIL = "redis.call('SET', KEYS[3], string.format('%.0f', total))"
# KEYS: answers, their ends, their bytes. ARGV: most bytes, name, text, milliseconds that it is kept.
_PUT = f"""{_HEAD}
drop(ARGV[2])
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[2])
total = total + #ARGV[3] + 2 * #ARGV[2] + 200
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 256)) do drop(name) end
while total > tonumber(ARGV[1]) do
  local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not first then break end
  drop(first)
end
{_TAIL}
"""
# ARGV: name. Answers {text, milliseconds that are left}, or nothing.
_FIND = f"""{_HEAD}
local left = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') - now
if left <= 0 then return nil end
local text = redis.call('HGET', KEYS[1], ARGV[1])
return text and {{text, string.format('%.0f', left)}}
"""
_DROP = f"{_HEAD}\nfor _, name in ipairs(ARGV) do drop(name) end\n{_TAIL}"
SubKey = Callable[[str, Purpose], bytes | None]


class AnswerStore:
    """Writes and reads; without a data key of the tenant it does neither.

    Args:
        redis: with decoded answers.
        config: where records lie.
        max_bytes: of all answers of all tenants.
        sub_key: of a tenant.
        store_id: of the store that takes and gives them; ``None`` before it is known.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        max_bytes: int,
        sub_key: SubKey,
        store_id: StoreId = any_store,
    ) -> None:
        self._redis = redis
        head = f"{config.prefix}:answers"
        self._keys = [head, f"{head}:until", f"{head}:bytes"]
        self._max_bytes = max_bytes
        self._sub_key = sub_key
        self._put, self._find, self._drop = (
            GuardedScript(redis, config, text, store_id) for text in (_PUT, _FIND, _DROP)
        )

    async def put(self, tenant_id: str, request: bytes, answer: bytes, ttl_s: float) -> bool:
        """Keep the answer to a request; false where the tenant has no data key, or there is no room for one so large.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        key = self._sub_key(tenant_id, Purpose.RESPONSE_CACHE)
        if key is None or 2 * len(answer) > self._max_bytes:
            return False
        name = _name(tenant_id, request, key)
        text = base64.b64encode(seal(key, answer, name.encode())).decode()
        with translate_redis_errors():
            await self._put(self._keys, [self._max_bytes, name, text, max(1, int(ttl_s * 1000))])
        return True

    async def find(self, tenant_id: str, request: bytes) -> tuple[bytes, float] | None:
        """The answer to a request, and for how many seconds it is still kept; ``None`` where there is none.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        key = self._sub_key(tenant_id, Purpose.RESPONSE_CACHE)
        if key is None:
            return None
        name = _name(tenant_id, request, key)
        with translate_redis_errors():
            found: Any = await self._find(self._keys, [name])
        if found is None:
            return None
        try:
            return unseal(key, base64.b64decode(found[0], validate=True), name.encode()), int(found[1]) / 1000
        except (BrokenSeal, ValueError):
            return None  # altered, or cut: as if it were not there

    async def forget(self, tenant_id: str) -> None:
        """Remove all answers of a tenant that is deleted: without its key they are noise already."""
        with translate_redis_errors():
            names = [name async for name, _ in self._redis.hscan_iter(self._keys[0], f"{tenant_id}/*", _SCAN_COUNT)]
            for begin in range(0, len(names), _SCAN_COUNT):
                await self._drop(self._keys, names[begin : begin + _SCAN_COUNT])


def _name(tenant_id: str, request: bytes, key: bytes) -> str:
    return f"{tenant_id}/{hmac.new(key, request, hashlib.sha256).hexdigest()}"
