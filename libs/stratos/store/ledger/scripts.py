"""One entry of the ledger, written once, as a Lua script: the entry and all its sums, or nothing. Keys are declared.

An entry of a higher rank takes the place of one of a lower rank, whose measures are taken back in the same step.
Where that one is in a segment already, the caller brings it: a request that arrived before the horizon of the chain is
written only by one who has looked into all segments that there are.
"""

from __future__ import annotations

from stratos.store.ledger.window_scripts import ADD_TO_WINDOW

_MEASURE = """
local function measure(text)
  local value = cjson.decode(text)
  local m = value['m']
  local due = (m['gross'] or 0) - (m['cached_discount'] or 0) - (m['batch_discount'] or 0)
    - (m['replay_discount'] or 0) - (m['credit'] or 0)
  return value['g'], m, due, value
end
"""

# Device time is told by attempts, to whichever gateway a worker reaches: the entry that stays gets what the other has.
# An entry of an older version that names no attempts is left as it is. The text is changed in place, since
# decoding and encoding would round large amounts.
_DEVICES = """
local function devices(value)
  if value['d'] then return value['d'] end
  local all, rank = value['m']['device_us'], value['rank'] or 0
  if not all then return {} end
  return rank < 1000000 and {[string.format('%.0f', rank)] = all} or nil
end
local function with_devices(text, other)
  local own, more = devices(cjson.decode(text)), devices(cjson.decode(other))
  if not own or not more then return text end
  local is_new, total, parts = false, 0, {}
  for attempt, us in pairs(more) do
    if us > (own[attempt] or 0) then own[attempt], is_new = us, true end
  end
  if not is_new then return text end
  for attempt, us in pairs(own) do
    total = total + us
    table.insert(parts, '"' .. attempt .. '":' .. string.format('%.0f', us))
  end
  table.sort(parts)
  text = string.gsub(text, '^{"d":%b{},', '{', 1)
  text = string.gsub(string.gsub(text, '"device_us":%d+,', '', 1), ',"device_us":%d+', '', 1)
  text = string.gsub(text, '"m":{', '"m":{"device_us":' .. string.format('%.0f', total) .. ',', 1)
  return '{"d":{' .. table.concat(parts, ',') .. '},' .. string.sub(text, 2)
end
"""

# KEYS: entries of the day, sums of the day, spend by month, tenants, spans of the day, order of the day, corrections of
# the day, chain of segments, days in use. ARGV: request id, rank, text, tenant, month, seconds that entries are kept or
# 0, seconds that spans are kept, milliseconds of arrival, day, number of segments that the caller has looked into,
# number of the one that has the entry, text that is there. Answers {outcome, what the tenant owes for the month}, or
# {'late', number of segments}. Keys and arguments of ADD_TO_WINDOW follow.
WRITE_ENTRY = (
    _MEASURE
    + _DEVICES
    + ADD_TO_WINDOW
    + """
local function keep(key, seconds)
  if seconds ~= '0' and redis.call('TTL', key) < 0 then redis.call('EXPIRE', key, seconds) end
end
local function add(text, sign)
  local group, measures, due, value = measure(text)
  for name, number in pairs(measures) do
    redis.call('HINCRBY', KEYS[2], group .. string.char(31) .. name, string.format('%.0f', sign * number))
  end
  redis.call('HINCRBY', KEYS[3], ARGV[5], string.format('%.0f', sign * due + 0))
  add_to_window(value, sign)
  if measures['promises'] then
    local span = string.format('%.0f', math.floor((value['arrived_unix_ms'] or 0) / 300000))
    local head = string.match(group, '^[^\\31]*') .. string.char(31) .. span .. string.char(31)
    for _, name in ipairs({'promises', 'violations', 'credit'}) do
      if measures[name] then
        redis.call('HINCRBY', KEYS[5], head .. name, string.format('%.0f', sign * measures[name]))
      end
    end
    keep(KEYS[5], ARGV[7])
  end
end
local old, sealed = redis.call('HGET', KEYS[1], ARGV[1]), false
if not old then
  local chain = redis.call('HMGET', KEYS[8], 'number', 'horizon')
  if tonumber(ARGV[8]) < tonumber(chain[2] or '-1') then
    if ARGV[10] ~= chain[1] then return {'late', chain[1]} end
    if ARGV[12] ~= '' then old, sealed = ARGV[12], true end
  end
end
local outcome, text = 'new', ARGV[3]
if old then
  local rank = cjson.decode(old)['rank'] or 0
  if rank >= tonumber(ARGV[2]) then
    outcome, text = 'kept', with_devices(old, text)
    if text == old then return {outcome, redis.call('HGET', KEYS[3], ARGV[5]) or '0'} end
  else
    outcome, text = 'replaced', with_devices(text, old)
  end
  add(old, -1)
end
redis.call('HSET', KEYS[1], ARGV[1], text)
redis.call('ZADD', KEYS[6], ARGV[8], ARGV[1])
keep(KEYS[1], ARGV[6])
keep(KEYS[6], ARGV[6])
if sealed then
  redis.call('HSET', KEYS[7], ARGV[1], ARGV[11] .. ' ' .. old)
  keep(KEYS[7], ARGV[6])
end
redis.call('SADD', KEYS[4], ARGV[4])
redis.call('SADD', KEYS[9], ARGV[4] .. ' ' .. ARGV[9])
add(text, 1)
return {outcome, redis.call('HGET', KEYS[3], ARGV[5])}
"""
)

# KEYS: workers. ARGV: address, text, ...
NOTE_WORKERS = "redis.call('HSET', KEYS[1], unpack(ARGV))"

# KEYS: tenants, spend by month of the old name and of the new one; then of each day entries and sums of the old name,
# entries and sums of the new one. ARGV: old name, new name, seconds that entries are kept; then the month of each day.
# Answers how many days were moved. Of an entry that both have the one of the higher rank stays.
MOVE = (
    _MEASURE
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
