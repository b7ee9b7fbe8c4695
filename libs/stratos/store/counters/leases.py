"""Token buckets in Redis from which gateways lease slices ahead of time.

    <prefix>:rate:<what>:<model>:<tenant>   hash {level, at, o:<gateway>, e:<gateway>, ...}; absent means full

A bucket refills at its rate up to its capacity.  What a gateway has leased and not reported as spent is outstanding:

    level + sum of what is outstanding <= capacity          at all times

so however many gateways lease from it, in any window T no more than ``capacity + rate * T`` is granted.  A lease that
is not renewed expires, and what it held goes back into the bucket: of a gateway that was killed, what it had spent and
not reported comes back too, which is the one thing that can be granted twice, and at most one slice per such gateway.

A rate of 0 makes the bucket a semaphore: what is spent is nothing, what is held is in use or spare, and comes back.

A lease of less than ``least`` would serve no request.  Then all of it goes back, so that two gateways that hold half
of a request each do not stop each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# KEYS: buckets. ARGV: gateway, microseconds until a lease expires, now in microseconds or "" for the server's clock;
# then of each bucket: capacity, rate per second, spent since the last call, wish, least.
# Answers of each bucket: what the gateway holds now, what is left in the bucket, gateways that hold leases.
LEASE = """
local gateway, ttl, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local answers = {}
for i, key in ipairs(KEYS) do
  local base = 3 + (i - 1) * 5
  local capacity, rate, spent = tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2]), tonumber(ARGV[base + 3])
  local wish, least = tonumber(ARGV[base + 4]), tonumber(ARGV[base + 5])
  local fields, found = {}, redis.call('HGETALL', key)
  for f = 1, #found, 2 do fields[found[f]] = tonumber(found[f + 1]) end
  local level, at = fields['level'] or capacity, fields['at'] or now
  local held, others, num = 0, 0, 1
  for name, amount in pairs(fields) do
    if string.sub(name, 1, 2) == 'o:' then
      local holder = string.sub(name, 3)
      if (fields['e:' .. holder] or 0) <= now then
        level = level + amount
        redis.call('HDEL', key, name, 'e:' .. holder)
      elseif holder == gateway then
        held = amount
      else
        others, num = others + amount, num + 1
      end
    end
  end
  level = level + math.max(0, math.min(rate * (now - at) / 1000000, capacity - level - held - others))
  if rate == 0 then level = capacity - held - others end
  held = held - spent
  if held < 0 then level, held = level + held, 0 end
  local all = held + math.max(0, level)
  local wanted = math.min(wish, all)
  if wanted < least then wanted = 0 end
  level, held = level + held - wanted, wanted
  redis.call('HSET', key, 'level', string.format('%.6f', level), 'at', string.format('%.0f', math.max(now, at)),
    'o:' .. gateway, string.format('%.6f', held), 'e:' .. gateway, string.format('%.0f', now + ttl))
  local full_s = rate > 0 and (capacity - level) / rate or 0
  redis.call('PEXPIRE', key, math.ceil(ttl / 1000 + math.max(0, full_s) * 1000) + 60000)
  answers[i] = {string.format('%.6f', held), string.format('%.6f', level), num}
end
return answers
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAsk:
    """Report and request of a gateway for one bucket."""

    bucket: str
    """Limited quantity, with its model and tenant."""
    capacity: float
    rate_per_s: float
    """0 for a semaphore."""
    spent: float
    """Since the last call; below 0 where more came back than was spent."""
    wish: float
    """Amount that the gateway wants to hold from now on."""
    least: float
    """Less than this is of no use to it."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """How a bucket stands after a call."""

    held: float
    """By the gateway that asked."""
    level: float
    """Left for all; below 0 where more was spent than the bucket had."""
    num_gateways: int
    """That hold leases, the one that asked included."""


def lease_keys(prefix: str, asks: Sequence[LeaseAsk]) -> list[str]:
    """Names of the buckets in Redis."""
    return [f"{prefix}:rate:{ask.bucket}" for ask in asks]


def lease_args(gateway: str, ttl_s: float, asks: Sequence[LeaseAsk], now_s: float | None = None) -> list[str | float]:
    """Arguments of ``LEASE``; ``now_s`` takes the place of the server's clock."""
    head: list[str | float] = [gateway, int(ttl_s * 1e6), "" if now_s is None else int(now_s * 1e6)]
    return head + [value for a in asks for value in (a.capacity, a.rate_per_s, a.spent, a.wish, a.least)]


def parse_grants(answers: Sequence[Sequence[str | int]]) -> list[LeaseGrant]:
    """Read the answer of ``LEASE``."""
    return [LeaseGrant(float(held), float(level), int(num)) for held, level, num in answers]


class LeaseStore:
    """Leases of one gateway.

    Args:
        redis: with decoded answers.
        config: where records lie.
        gateway: name of this process, never used again.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, gateway: str, store_id: StoreId = any_store) -> None:
        self._prefix = config.prefix
        self._gateway = gateway
        self._script = GuardedScript(redis, config, LEASE, store_id)

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float) -> list[LeaseGrant]:
        """Report and renew, all buckets in one transaction.

        Raises:
            DependencyDown: Redis does not answer, and may have done it all the same; or it is not the store.
        """
        with translate_redis_errors():
            answers: Any = await self._script(lease_keys(self._prefix, asks), lease_args(self._gateway, ttl_s, asks))
        return parse_grants(answers)
