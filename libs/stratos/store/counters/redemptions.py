"""Who goes on with which answer, for all gateways: a continuation token is good for one redemption.

<prefix>:continuations:<tenant>:<name>   who has redeemed it, until it is of no use any more

The same redeemer may come again: a request with a record is taken over by other gateways.  One who gave its client
nothing gives the token back.
"""

from __future__ import annotations

import enum
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# ARGV: redeemer, milliseconds that the token is good for, milliseconds that the claim is kept beyond them.
_CLAIM = """
local owner, left = redis.call('GET', KEYS[1]), tonumber(ARGV[2])
if owner then return owner == ARGV[1] and 'ok' or 'used' end
if left <= 0 then return 'expired' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', left + tonumber(ARGV[3]))
return 'ok'
"""
# ARGV: redeemer.
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


class Claimed(enum.StrEnum):
    """Outcomes of a claim."""

    OK = "ok"
    USED = "used"
    EXPIRED = "expired"


class Redemptions:
    """Every method raises ``DependencyDown`` where Redis does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        kept_s: how long a claim outlives its token.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, kept_s: float, store_id: StoreId = any_store) -> None:
        self._head = f"{config.prefix}:continuations"
        self._kept_ms = int(kept_s * 1000)
        self._claim = GuardedScript(redis, config, _CLAIM, store_id)
        self._release = GuardedScript(redis, config, _RELEASE, store_id)

    async def claim(self, tenant_id: str, name: str, redeemer: str, left_s: float) -> Claimed:
        """Redeem a token.

        Args:
            tenant_id: whose it is.
            name: of the token.
            redeemer: the request that goes on with the answer.
            left_s: how long the token is good for yet; nothing is left of an old one.
        """
        args: list[str | int | float] = [redeemer, int(left_s * 1000), self._kept_ms]
        with translate_redis_errors():
            found: Any = await self._claim([self._key(tenant_id, name)], args)
        return Claimed(found)

    async def release(self, tenant_id: str, name: str, redeemer: str) -> None:
        """Give a token back that this redeemer has."""
        with translate_redis_errors():
            await self._release([self._key(tenant_id, name)], [redeemer])

    def _key(self, tenant_id: str, name: str) -> str:
        return f"{self._head}:{tenant_id}:{name}"
