"""Scripts of the ledger beside the one that writes entries: workers, the move of an older ledger, the chain's steps."""

from __future__ import annotations

MEASURE = """
local function measure(text)
  local value = cjson.decode(text)
  local m = value['m']
  local due = (m['gross'] or 0) - (m['cached_discount'] or 0) - (m['batch_discount'] or 0)
    - (m['replay_discount'] or 0) - (m['credit'] or 0)
  return value['g'], m, due, value
end
"""

# KEYS: workers. ARGV: address, text, ...
NOTE_WORKERS = "redis.call('HSET', KEYS[1], unpack(ARGV))"

# KEYS: tenants, spend by month of the old name and of the new one; then of each day entries and sums of the old name,
# entries and sums of the new one. ARGV: old name, new name, seconds that entries are kept; then the month of each day.
# Answers how many days were moved. Of an entry that both have the one of the higher rank stays.
MOVE = (
    MEASURE
    + """
local function rank(text) return cjson.decode(text)['rank'] or 0 end
local function add_all(from, to)
  local found = redis.call('HGETALL', from)
  for f = 1, #found, 2 do redis.call('HINCRBY', to, found[f], found[f + 1]) end
  redis.call('DEL', from)
end
local function merge_entries(from, to, sums, month)
  local found = redis.call('HGETALL', from)
  for f = 1, #found, 2 do
    local other, lower = redis.call('HGET', to, found[f]), nil
    if other then lower = rank(found[f + 1]) > rank(other) and other or found[f + 1] end
    if lower then
      local group, measures, due = measure(lower)
      for name, number in pairs(measures) do
        redis.call('HINCRBY', sums, group .. string.char(31) .. name, string.format('%.0f', -number))
      end
      redis.call('HINCRBY', KEYS[3], month, string.format('%.0f', -due + 0))
    end
    if lower ~= found[f + 1] then redis.call('HSET', to, found[f], found[f + 1]) end
  end
  redis.call('DEL', from)
  if redis.call('TTL', to) < 0 then redis.call('EXPIRE', to, ARGV[3]) end
end
local num = 0
for i = 4, #KEYS - 3, 4 do
  if redis.call('EXISTS', KEYS[i], KEYS[i + 1]) > 0 then
    num = num + 1
    if redis.call('EXISTS', KEYS[i + 2]) == 1 then
      merge_entries(KEYS[i], KEYS[i + 2], KEYS[i + 3], ARGV[3 + i / 4])
    elseif redis.call('EXISTS', KEYS[i]) == 1 then
      redis.call('RENAME', KEYS[i], KEYS[i + 2])
    end
    add_all(KEYS[i + 1], KEYS[i + 3])
  end
end
add_all(KEYS[2], KEYS[3])
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[1], ARGV[2])
return num
"""
)

# KEYS: chain, names of segments, segments of days. ARGV: number of segments that the caller knows of, name of the last
# one or "", name of the new one, its horizon, now in milliseconds, then its days. Answers whether it is the next one.
APPEND = """
local number = redis.call('HGET', KEYS[1], 'number') or '0'
if number ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[2], tonumber(number) - 1) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[2], number, ARGV[3])
local horizon = redis.call('HGET', KEYS[1], 'horizon') or '0'
if tonumber(ARGV[4]) > tonumber(horizon) then horizon = ARGV[4] end
redis.call('HSET', KEYS[1], 'number', tonumber(number) + 1, 'horizon', horizon, 'appended', ARGV[5])
for i = 6, #ARGV do
  local ranges = redis.call('HGET', KEYS[3], ARGV[i]) or ''
  local head, last = string.match(ranges, '^(.*)%-(%d+)$')
  if last and tonumber(last) == tonumber(number) - 1 then
    ranges = head .. '-' .. number
  else
    ranges = ranges .. (ranges == '' and '' or ',') .. number .. '-' .. number
  end
  redis.call('HSET', KEYS[3], ARGV[i], ranges)
end
return 1
"""

# KEYS: entries, order and corrections of a day, days in use, names of segments. ARGV: tenant and day, number of the
# segment, its name or "" where it has none yet, then request id and text of each of its lines, or no text for an id
# that has no entry. What was written again since it was read for the segment stays and corrects it. A Redis that took
# the place of the one in which the segment was appended, and lacks that, keeps its entries: they are sealed again.
CLEAR = """
local segment = tonumber(ARGV[2])
if ARGV[3] ~= '' and redis.call('HGET', KEYS[5], ARGV[2]) ~= ARGV[3] then return end
for i = 4, #ARGV, 2 do
  local id, text = ARGV[i], ARGV[i + 1]
  local found = redis.call('HGET', KEYS[1], id)
  local base = tonumber(string.match(redis.call('HGET', KEYS[3], id) or '', '^%d+') or '-1')
  if found == text and base < segment then
    redis.call('HDEL', KEYS[1], id)
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[3], id)
  elseif found and text ~= '' and base < segment then
    redis.call('HSET', KEYS[3], id, ARGV[2] .. ' ' .. text)
  elseif not found then
    redis.call('ZREM', KEYS[2], id)
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
  redis.call('SREM', KEYS[4], ARGV[1])
end
"""

# KEYS: chain. ARGV: name and value of a number that only rises. No more segments are cleared than there are.
NOTE = """
if ARGV[1] == 'cleared' and tonumber(ARGV[2]) > tonumber(redis.call('HGET', KEYS[1], 'number') or '0') then return end
if tonumber(ARGV[2]) > tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
"""

# KEYS: chain. ARGV: number of segments. Answers the number that was noted first.
BEGIN_REBOOKING = """
redis.call('HSETNX', KEYS[1], 'rebooks', ARGV[1])
return redis.call('HGET', KEYS[1], 'rebooks')
"""

# KEYS: chain.
END_REBOOKING = "redis.call('HDEL', KEYS[1], 'rebooks')"

# KEYS: lease. ARGV: holder, milliseconds that it lasts, 0 to give it up. Answers whether the caller has it.
TAKE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return 1
"""
