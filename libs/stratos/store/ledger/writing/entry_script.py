"""Entries of the ledger, each written once, as a Lua script: an entry and all its sums, or nothing. Keys are declared.

An entry of a higher rank takes the place of one of a lower rank, whose measures are taken back in the same step.
Where that one is in a segment already, the caller brings it: a request that arrived before the horizon of the chain is
written only by one who has looked into all segments that there are.

Entries of a script are written one after the other, each as if it were alone: what Redis has to know of their days it
is told once, and one script is what the server and its client take up once.
"""

from __future__ import annotations

from stratos.store.ledger.scripts import MEASURE
from stratos.store.ledger.window_scripts import ADD_TO_WINDOW

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

# KEYS: tenants, chain of segments, days in use; then of each day of a tenant entries, sums, spans, order, corrections
# and the tenant's spend by month; of each window those of ADD_TO_WINDOW.
# ARGV: seconds that entries are kept or 0, seconds that spans and missed windows are kept; then of each entry ten
# of them: place of its day's keys and of its window's keys, request id, rank, text, tenant, day, milliseconds of
# arrival, name of its window; and "" or, of one that the caller has looked for, the number of segments looked into,
# that of the one that has it, and its text there, with blanks between.
# Answers one line per entry: what came of it, and what the tenant owes for the month; or "late", number of segments.
WRITE_ENTRIES = (
    MEASURE
    + _DEVICES
    + ADD_TO_WINDOW
    + """
local tenants, chain_key, open = KEYS[1], KEYS[2], KEYS[3]
local entries_kept_s, spans_kept_s = ARGV[1], ARGV[2]
local chain = redis.call('HMGET', chain_key, 'number', 'horizon')
local noted = {}
local function keep(key, seconds)
  if seconds ~= '0' and redis.call('TTL', key) < 0 then redis.call('EXPIRE', key, seconds) end
end
local function add(at, text, sign)
  local group, measures, due, value = measure(text)
  for name, number in pairs(measures) do
    redis.call('HINCRBY', at.sums, group .. string.char(31) .. name, whole(sign * number))
  end
  redis.call('HINCRBY', at.spend, at.month, whole(sign * due + 0))
  add_to_window(at, value, sign)
  if measures['promises'] then
    local span = string.format('%.0f', math.floor((value['arrived_unix_ms'] or 0) / 300000))
    local head = string.match(group, '^[^\\31]*') .. string.char(31) .. span .. string.char(31)
    for _, name in ipairs({'promises', 'violations', 'credit'}) do
      if measures[name] then
        redis.call('HINCRBY', at.spans, head .. name, whole(sign * measures[name]))
      end
    end
    keep(at.spans, spans_kept_s)
  end
end
local function note_day(at, tenant, day)
  if noted[at.entries] then return end
  redis.call('SADD', tenants, tenant)
  redis.call('SADD', open, tenant .. ' ' .. day)
  noted[at.entries] = true
end
local function write(at, id, rank, text, tenant, day, arrived_ms, look)
  local old, sealed_in = redis.call('HGET', at.entries, id), nil
  if not old and tonumber(arrived_ms) < tonumber(chain[2] or '-1') then
    local seen, number, found = string.match(look, '^(%d+) (%-?%d+) (.*)$')
    if seen ~= chain[1] then return 'late ' .. chain[1] end
    if found ~= '' then old, sealed_in = found, number end
  end
  local outcome, new = 'new', text
  if old then
    local old_rank = cjson.decode(old)['rank'] or 0
    if old_rank >= tonumber(rank) then
      outcome, new = 'kept', with_devices(old, text)
      if new == old then return 'kept ' .. (redis.call('HGET', at.spend, at.month) or '0') end
    else
      outcome, new = 'replaced', with_devices(text, old)
    end
    add(at, old, -1)
  end
  redis.call('HSET', at.entries, id, new)
  redis.call('ZADD', at.order, arrived_ms, id)
  keep(at.entries, entries_kept_s)
  keep(at.order, entries_kept_s)
  if sealed_in then
    redis.call('HSET', at.corrects, id, sealed_in .. ' ' .. old)
    keep(at.corrects, entries_kept_s)
  end
  note_day(at, tenant, day)
  add(at, new, 1)
  return outcome .. ' ' .. redis.call('HGET', at.spend, at.month)
end
local answers = {}
for i = 3, #ARGV, 10 do
  local d, w, day = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 6]
  local at = {
    entries = KEYS[d], sums = KEYS[d + 1], spans = KEYS[d + 2], order = KEYS[d + 3], corrects = KEYS[d + 4],
    spend = KEYS[d + 5], month = string.sub(day, 1, 7), windows = KEYS[w], missed = KEYS[w + 1],
    histogram = KEYS[w + 2], histogram_of = ARGV[i + 8], kept_s = spans_kept_s
  }
  table.insert(
    answers, write(at, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], day, ARGV[i + 7], ARGV[i + 9])
  )
end
return table.concat(answers, '\\n')
"""
)
