"""Who goes on with which answer, for all gateways: a continuation token is good for one redemption.

<prefix>:continuations:<tenant>:<name>   who has redeemed it, until it is of no use any more

A redeemer is a name and one of its tries, as in ``strm_4711 try_1``.  The same name may come again: a request with a
record is taken over by other gateways, and the claim is then that of the newer try.  A try that gave its client nothing
gives the token back; it does not take it from a newer one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# ARGV: name, try, milliseconds that the token is good for, milliseconds that the claim is kept beyond them.
_CLAIM = """
local owner, left = redis.call('GET', KEYS[1]), math.max(0, tonumber(ARGV[3]))
if owner and string.match(owner, '^[^ ]*') ~= ARGV[1] then return 'used' end
if not owner and left == 0 then return 'expired' end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', left + tonumber(ARGV[4]))
return 'ok'
"""
# ARGV: name, try; without a try whichever it was.
_RELEASE = """
local owner = redis.call('GET', KEYS[1])
if not owner then return end
if owner == ARGV[1] .. ' ' .. ARGV[2] or (ARGV[2] == '' and string.match(owner, '^[^ ]*') == ARGV[1]) then
  redis.call('DEL', KEYS[1])
end
"""


@dataclass(frozen=True, slots=True)
class Redeemer:
    """Name of who goes on with an answer, and one try of it."""

    name: str
    """Name that all tries share; without blanks."""
    attempt: str = ""
    """Id of this try alone; empty stands for all of them."""


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

    async def claim(self, tenant_id: str, name: str, redeemer: Redeemer, left_s: float) -> Claimed:
        """Redeem a token; who has it already keeps it for so long from now on.

        Args:
            tenant_id: whose it is.
            name: of the token.
            redeemer: the request that goes on with the answer.
            left_s: how long the token is good for yet; nothing is left of an old one.
        """
        args: list[str | int | float] = [redeemer.name, redeemer.attempt, int(left_s * 1000), self._kept_ms]
        with translate_redis_errors():
            found: Any = await self._claim([self._key(tenant_id, name)], args)
        return Claimed(found)

    async def release(self, tenant_id: str, name: str, redeemer: Redeemer) -> None:
        """Give a token back that this redeemer has."""
        with translate_redis_errors():
            await self._release([self._key(tenant_id, name)], [redeemer.name, redeemer.attempt])

    def _key(self, tenant_id: str, name: str) -> str:
        return f"{self._head}:{tenant_id}:{name}"
