"""One entry of the ledger, written once, as a Lua script: the entry and all its sums, or nothing. Keys are declared.

What comes late of a tenant that was deleted is not written under its name: the answer says under which one.
An entry of a higher rank takes the place of one of a lower rank, whose measures are taken back in the same step.
"""

from __future__ import annotations

# KEYS: entries of the day, sums of the day, spend by month, tenants, the name's pseudonym. ARGV: request id, rank,
# text, tenant, month, seconds that entries are kept, arrival of the request. Answers {outcome, what the tenant owes for
# the month}, or {'renamed', pseudonym} and nothing is written.
WRITE_ENTRY = """
local other = redis.call('HMGET', KEYS[5], 'name', 'until_unix_ms')
if other[1] and tonumber(ARGV[7]) <= tonumber(other[2]) then return {'renamed', other[1]} end
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

# KEYS: of every old name; then of every new name; then the name's pseudonym. ARGV: the pseudonym, until when requests
# that arrived are those of the deleted tenant, seconds for which that is known. Moves what is there; answers how many.
RENAME = """
local half, num = (#KEYS - 1) / 2, 0
redis.call('HSET', KEYS[#KEYS], 'name', ARGV[1], 'until_unix_ms', ARGV[2])
redis.call('EXPIRE', KEYS[#KEYS], ARGV[3])
for i = 1, half do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('RENAME', KEYS[i], KEYS[half + i])
    num = num + 1
  end
end
return num
"""
