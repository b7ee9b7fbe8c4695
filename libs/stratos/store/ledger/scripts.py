"""One entry of the ledger, written once, as a Lua script: the entry and all its sums, or nothing. Keys are declared.

An entry of a higher rank takes the place of one of a lower rank, whose measures are taken back in the same step.
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

# KEYS: entries of the day, sums of the day, spend by month, tenants, spans of the day. ARGV: request id, rank, text,
# tenant, month, seconds that entries are kept. Keys and arguments of ADD_TO_WINDOW follow. Answers {outcome, what the
# tenant owes for the month}.
WRITE_ENTRY = (
    _MEASURE
    + _DEVICES
    + ADD_TO_WINDOW
    + """
local function add(text, sign)
  local group, measures, due, value = measure(text)
  for name, number in pairs(measures) do
    redis.call('HINCRBY', KEYS[2], group .. string.char(31) .. name, string.format('%.0f', sign * number))
  end
  redis.call('HINCRBY', KEYS[3], ARGV[5], string.format('%.0f', sign * due))
  add_to_window(value, sign)
  if measures['promises'] then
    local span = string.format('%.0f', math.floor((value['arrived_unix_ms'] or 0) / 300000))
    local head = string.match(group, '^[^\\31]*') .. string.char(31) .. span .. string.char(31)
    for _, name in ipairs({'promises', 'violations', 'credit'}) do
      if measures[name] then
        redis.call('HINCRBY', KEYS[5], head .. name, string.format('%.0f', sign * measures[name]))
      end
    end
    if redis.call('TTL', KEYS[5]) < 0 then redis.call('EXPIRE', KEYS[5], ARGV[6]) end
  end
end
local old = redis.call('HGET', KEYS[1], ARGV[1])
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
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[6]) end
redis.call('SADD', KEYS[4], ARGV[4])
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
      redis.call('HINCRBY', KEYS[3], month, string.format('%.0f', -due))
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
