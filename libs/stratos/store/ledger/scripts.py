"""One entry of the ledger, written once, as a Lua script: the entry and all its sums, or nothing. Keys are declared.

An entry of a higher rank takes the place of one of a lower rank, whose measures are taken back in the same step.
"""

from __future__ import annotations

# KEYS: entries of the day, sums of the day, spend by month, tenants. ARGV: request id, rank, text, tenant, month,
# seconds that entries are kept. Answers {outcome, what the tenant owes for the month}.
WRITE_ENTRY = """
local function measure(text)
  local value = cjson.decode(text)
  local m = value['m']
  local due = (m['gross'] or 0) - (m['cached_discount'] or 0) - (m['batch_discount'] or 0)
    - (m['replay_discount'] or 0) - (m['credit'] or 0)
  return value['g'], m, due
end
local function add(text, sign)
  local group, measures, due = measure(text)
  for name, number in pairs(measures) do
    redis.call('HINCRBY', KEYS[2], group .. string.char(31) .. name, string.format('%.0f', sign * number))
  end
  redis.call('HINCRBY', KEYS[3], ARGV[5], string.format('%.0f', sign * due))
end
local old = redis.call('HGET', KEYS[1], ARGV[1])
local outcome = 'new'
if old then
  local rank = cjson.decode(old)['rank'] or 0
  if rank >= tonumber(ARGV[2]) then return {'kept', redis.call('HGET', KEYS[3], ARGV[5]) or '0'} end
  add(old, -1)
  outcome = 'replaced'
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[6]) end
redis.call('SADD', KEYS[4], ARGV[4])
add(ARGV[3], 1)
return {outcome, redis.call('HGET', KEYS[3], ARGV[5])}
"""

# KEYS: workers. ARGV: address, text, ...
NOTE_WORKERS = "redis.call('HSET', KEYS[1], unpack(ARGV))"

# KEYS: of every old name; then of every new name. Moves what is there; answers how many.
RENAME = """
local half, num = #KEYS / 2, 0
for i = 1, half do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('RENAME', KEYS[i], KEYS[half + i])
    num = num + 1
  end
end
return num
"""
