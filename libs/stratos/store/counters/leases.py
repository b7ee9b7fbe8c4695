"""Token buckets in Redis from which gateways lease slices ahead of time.

    <prefix>:rate:<what>:<model>:<tenant>   hash {level, at, o:<gateway>, e:, c:, u:<gateway>, ...}; absent means full
    <prefix>:gateways                       hash {<gateway>: microseconds when it was last heard}
    <prefix>:wants                          hash {<bucket>|<gateway>: until when it lacks what another one may have}
    <prefix>:unheard                        hash {<gateway>: until when it may have spent what no bucket knows of}

A bucket refills at its rate up to its capacity.  What a gateway has leased and not reported as spent is outstanding:

    level + sum of what is outstanding + what is missing = capacity, and no less than 0 is missing

also when more comes back than was spent; so however many gateways lease from it, in any window T no more than
``capacity + rate * T`` is granted.  A lease that is not renewed expires, and what it held goes back into the bucket: of
a gateway that was killed, what it had spent and not reported comes back too, which is the one thing that can be
granted twice, and at most one slice per such gateway.

Reports are cumulative, so that one whose answer was lost counts once.  A gateway that lacks what others hold unused
says so; each gateway hears of it with its next call, and gives back what it does not need at that moment.

A rate of 0 makes the bucket a semaphore: what is spent is nothing, what is held is in use or spare, and comes back.

Redis knows that it was away: gateways call it all the time, and none did.  What each of them gave in that time is in no
bucket until it has reported all of them, and says so; before that, no other gateway gets more than it has, but for one
that asks for its share of the rate alone (``LeaseAsk.is_share``).  It says so by giving a mark back that it was
answered after the outage: calls of before, which a Redis that stood still runs when it goes on, report nothing of it.

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

GATEWAYS_KEPT_S = 300.0
"""A gateway counts for so long after it was last heard: a fact of minutes, not of who is busy with a tenant now."""
_WANTED_S = 1.0
SILENCE_S = 0.5
"""No gateway was heard for so long: Redis was away. Gateways call more often than that, and the shares that they give
without Redis begin later."""
_TOGETHER_S = 1.0
"""Gateways that were heard so shortly before an outage as the last one lived when it began."""
SETTLE_S = 2.0
"""After an outage slices grow by no more than shares for so long: by then every gateway that lives has reported."""

# KEYS: gateways, wants, unheard, buckets. ARGV: gateway, microseconds until a lease expires, now in microseconds or ""
# for the server's clock, microseconds for which gateways are kept and wants hold, that are silence, for which
# gateways that were not heard count, and within which they were heard together, the gateway's own mark if all it gave
# before it is reported; then the fields of each bucket's LeaseAsk.
# Answers: of each bucket what the gateway holds now, what is left, what others hold unused, for how long one that holds
# something was not heard; gateways; buckets that others want; gateways that did not report since Redis was away; the
# own mark of the one that asks.
LEASE = """
local gateway, ttl, now = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local kept, want, silence, settle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local together, reported = tonumber(ARGV[8]), ARGV[9]
local function whole(number) return string.format('%.0f', number) end
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local function read(key)
  local fields, found = {}, redis.call('HGETALL', key)
  for f = 1, #found, 2 do fields[found[f]] = tonumber(found[f + 1]) end
  return fields
end
local gateways, last, heard_at = {gateway}, nil, read(KEYS[1])
for name, heard in pairs(heard_at) do
  last = math.max(last or heard, heard)
  if heard + kept < now then
    redis.call('HDEL', KEYS[1], name)
  elseif name ~= gateway then
    table.insert(gateways, name)
    -- Of another server's clock, or of this one before it was set back; else it would be silence for ever.
    if heard > now then redis.call('HSET', KEYS[1], name, whole(now)) end
  end
end
redis.call('HSET', KEYS[1], gateway, whole(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(kept / 1000))
-- A last time to come is that of another server's clock: it was away, too.
if last and math.abs(now - last) > silence then
  for _, name in ipairs(gateways) do
    if (heard_at[name] or last) >= last - together then redis.call('HSET', KEYS[3], name, whole(now + settle)) end
  end
  redis.call('PEXPIRE', KEYS[3], 60000)
end
local function pool(name) return string.match(name, '^(.*)/') or '' end
local unheard, own, mark = {}, pool(gateway), ''
for name, till in pairs(read(KEYS[3])) do
  if till <= now or (name == gateway and whole(till) == reported) then
    redis.call('HDEL', KEYS[3], name)
  elseif name == gateway then
    mark = whole(till)
  elseif own == '' or pool(name) == '' or pool(name) == own then
    table.insert(unheard, name)
  end
end
local wants, contested, wanted_names = read(KEYS[2]), {}, {}
for field, till in pairs(wants) do
  local cut = string.find(field, '|[^|]*$')
  if till <= now then
    redis.call('HDEL', KEYS[2], field)
  elseif string.sub(field, cut + 1) ~= gateway then
    local name = string.sub(field, 1, cut - 1)
    if not contested[name] then table.insert(wanted_names, name) end
    contested[name] = true
  end
end
local answers = {}
for i = 1, #KEYS - 3 do
  local key, base = KEYS[i + 3], 9 + (i - 1) * 12
  local capacity, rate = tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2])
  local total, acked, use = tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4]), tonumber(ARGV[base + 5])
  local need, wish = tonumber(ARGV[base + 6]), tonumber(ARGV[base + 7])
  local least, keep, debt = tonumber(ARGV[base + 8]), tonumber(ARGV[base + 9]), tonumber(ARGV[base + 10])
  local is_share, owed = ARGV[base + 11] == '1', tonumber(ARGV[base + 12])
  local fields = read(key)
  -- A time to come is that of another server's clock, before it failed: it must not hold the refill up until then.
  local level, at = fields['level'] or capacity, math.min(now, fields['at'] or now)
  local held, others, unused, oldest = 0, 0, 0, now
  for name, amount in pairs(fields) do
    if string.sub(name, 1, 2) == 'o:' then
      local holder = string.sub(name, 3)
      if (fields['e:' .. holder] or 0) <= now then
        level = level + amount
        redis.call('HDEL', key, name, 'e:' .. holder, 'c:' .. holder, 'u:' .. holder)
      elseif holder == gateway then
        held = amount
      else
        others, unused = others + amount, unused + math.max(0, amount - (fields['u:' .. holder] or 0))
        oldest = math.min(oldest, heard_at[holder] or 0)
      end
    end
  end
  local spent = total - (fields['c:' .. gateway] or acked)
  local missing, refilled = math.max(0, capacity - level - held - others), rate * (now - at) / 1000000
  if owed then
    missing = math.max(0, missing - refilled) + math.min(spent, owed)
  else
    missing = missing + spent - refilled
  end
  if rate == 0 then missing = 0 end
  held = math.max(0, held - math.max(0, spent))
  level = capacity - held - others - math.max(missing, debt)
  local all = held + math.max(0, level)
  local wanted = math.min(wish, all)
  -- Of slots, spare ones only where many are left: near the cap each one is missing elsewhere.
  if rate == 0 then wanted = math.min(wanted, need + math.floor(math.max(0, all - need) / (2 * #gateways))) end
  if contested[key] then wanted = math.min(need, all) end
  if #unheard > 0 and not is_share then wanted = math.min(wanted, math.max(use, keep)) end
  if wanted < least then wanted = math.min(use, all) end
  wanted = math.max(wanted, math.min(keep, held))
  level, held = level + held - wanted, wanted
  redis.call('HSET', key, 'level', string.format('%.6f', level), 'at', string.format('%.0f', now))
  -- Of a gateway that holds nothing, a report whose answer may be lost must not count again.
  if held > 0 or math.abs(total - acked) > 1e-6 then
    redis.call('HSET', key, 'o:' .. gateway, string.format('%.6f', held), 'u:' .. gateway, use,
      'e:' .. gateway, string.format('%.0f', now + ttl), 'c:' .. gateway, string.format('%.6f', total))
  else
    redis.call('HDEL', key, 'o:' .. gateway, 'u:' .. gateway, 'e:' .. gateway, 'c:' .. gateway)
  end
  local full_s = rate > 0 and (capacity - level) / rate or 0
  redis.call('PEXPIRE', key, math.ceil(ttl / 1000 + math.max(0, full_s) * 1000) + 60000)
  local field = key .. '|' .. gateway
  if need > held and unused > 0 then
    redis.call('HSET', KEYS[2], field, string.format('%.0f', now + want))
    redis.call('PEXPIRE', KEYS[2], 60000)
  elseif wants[field] then
    redis.call('HDEL', KEYS[2], field)
  end
  answers[i] = {string.format('%.6f', held), string.format('%.6f', level), string.format('%.6f', unused),
    string.format('%.6f', (now - oldest) / 1000000)}
end
return {answers, gateways, wanted_names, unheard, mark}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAsk:
    """Report and request of a gateway for one bucket."""

    bucket: str
    """Limited quantity, with its model and tenant."""
    capacity: float
    rate_per_s: float
    """0 for a semaphore."""
    total: float = 0.0
    """Spent since the bucket is known here, less what came back; 0 of a semaphore."""
    acked: float = 0.0
    """Part of the total that the last answered call has reported."""
    in_use: float = 0.0
    """Slots of a semaphore; what is spent of a bucket with a rate is in the total."""
    need: float = 0.0
    """In use, and wanted by requests that wait at this moment."""
    wish: float
    """Amount that the gateway wants to hold from now on."""
    least: float = 0.0
    """Less than this is of no use to it."""
    keep: float = 0.0
    """It goes on spending so much while the call is under way."""
    debt: float = 0.0
    """At least so much is missing from the bucket, had it been full at the last report: refills since were spent."""
    is_share: bool = False
    """No more is wished for than this gateway's share of the rate brings."""
    owed: float | None = None
    """Redis was away: no more than this is still missing of what was spent, for the share was refilled."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """How a bucket stands after a call."""

    held: float
    """By the gateway that asked."""
    level: float
    """Left for all; below 0 where more was spent than the bucket had."""
    unused: float = 0.0
    """Held by other gateways and, by their last reports, not spent or in use."""
    silent_s: float = 0.0
    """Since the other gateways that hold something were heard, the longest."""


@dataclass(frozen=True, slots=True)
class LeaseTurn:
    """The answer to one call."""

    grants: Sequence[LeaseGrant]
    gateways: Sequence[str]
    """All that were heard in the last minutes, the one that asked included."""
    wanted: Sequence[str] = ()
    """Buckets of which other gateways lack something."""
    unheard: Sequence[str] = ()
    """Other gateways of these buckets that may have spent what none of them knows of, while Redis was away."""
    mark: str = ""
    """So may the one that asks, until it gives this back once it has reported all its buckets; else empty."""


def lease_keys(prefix: str, asks: Sequence[LeaseAsk]) -> list[str]:
    """Names of the three tables and of the buckets in Redis."""
    return [f"{prefix}:gateways", f"{prefix}:wants", f"{prefix}:unheard", *(_key(prefix, ask.bucket) for ask in asks)]


def lease_args(
    gateway: str, ttl_s: float, asks: Sequence[LeaseAsk], reported: str = "", now_s: float | None = None
) -> list[str | float]:
    """Arguments of ``LEASE``; ``now_s`` takes the place of the server's clock."""
    now = "" if now_s is None else int(now_s * 1e6)
    times_us = [int(seconds * 1e6) for seconds in (GATEWAYS_KEPT_S, _WANTED_S, SILENCE_S, SETTLE_S, _TOGETHER_S)]
    args: list[str | float] = [gateway, int(ttl_s * 1e6), now, *times_us, reported]
    for a in asks:
        args += (a.capacity, a.rate_per_s, a.total, a.acked, a.in_use, a.need, a.wish, a.least, a.keep, a.debt)
        args += (int(a.is_share), "" if a.owed is None else a.owed)
    return args


def parse_turn(prefix: str, answer: Sequence[Any]) -> LeaseTurn:
    """Read the answer of ``LEASE``."""
    grants, gateways, wanted, unheard, mark = answer
    return LeaseTurn(
        grants=[LeaseGrant(*map(float, grant)) for grant in grants],
        gateways=tuple(gateways),
        wanted=[name.removeprefix(_key(prefix, "")) for name in wanted],
        unheard=tuple(unheard),
        mark=mark,
    )


def _key(prefix: str, bucket: str) -> str:
    return f"{prefix}:rate:{bucket}"


class LeaseStore:
    """Leases of one gateway.

    Args:
        redis: with decoded answers.
        config: where records lie.
        gateway: name of this process, never used again.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, gateway: str, store_id: StoreId = any_store) -> None:
        self.gateway, self.is_alone = gateway, False
        self._redis = redis
        self._prefix = config.prefix
        self._script = GuardedScript(redis, config, LEASE, store_id)

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        """Report and renew, all buckets in one transaction; without any it only says that the gateway lives.

        Args:
            asks: one of each bucket.
            ttl_s: life of the leases.
            reported: mark of this gateway, where with this call all is reported that was given before it.

        Raises:
            DependencyDown: Redis does not answer, and may have done it all the same; or it is not the store.
        """
        with translate_redis_errors():
            args = lease_args(self.gateway, ttl_s, asks, reported)
            answer: Any = await self._script(lease_keys(self._prefix, asks), args)
        return parse_turn(self._prefix, answer)

    async def leave(self) -> None:
        """The gateway ends: the others need not leave a share to it any more.

        Raises:
            DependencyDown: Redis does not answer; it is forgotten by time.
        """
        with translate_redis_errors():
            await self._redis.hdel(f"{self._prefix}:gateways", self.gateway)
