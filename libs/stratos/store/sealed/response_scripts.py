"""Scripts over the keys of ``response_store`` and ``file_store``: each begins with ``HEAD`` and is one step."""

# KEYS: hash, ends, bytes, objects. Texts of all lengths: what the object store has of one counts as well.
# Without a text there are no bytes: their number of an older version may have outlived the texts.
HEAD = """
local total = redis.call('EXISTS', KEYS[2]) == 1 and tonumber(redis.call('GET', KEYS[3]) or '0') or 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function object_of(text) return string.match(text, '^o%d+|([^|]+)') end
local function plan(object, at) redis.call('ZADD', KEYS[4], at, object) end
local function cost(name, text)
  return #text + 2 * #name + 200 + tonumber(string.match(text, '^o(%d+)') or '0')
end
local function drop(name)
  local text = redis.call('HGET', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
  if not text then return 0 end
  redis.call('HDEL', KEYS[1], name)
  total = math.max(0, total - cost(name, text))
  local object = object_of(text)
  if object then plan(object, now) end
  return 1
end
local function save(ttl)
  local left = redis.call('PTTL', KEYS[3])
  redis.call('SET', KEYS[3], string.format('%.0f', total))
  if left > 0 then redis.call('PEXPIRE', KEYS[3], left) end -- it ends with the texts
  if ttl then for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], ttl) end end
end
"""
# ARGV: most bytes, milliseconds that it is kept, id, text.
PUT = """
drop(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
total = total + cost(ARGV[3], ARGV[4])
-- A text that takes the place of one of its own id has the same object.
local object = object_of(ARGV[4])
if object then plan(object, now + ARGV[2] + 60000) end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 256)) do drop(name) end
while total > tonumber(ARGV[1]) do
  local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not first or first == ARGV[3] then break end
  drop(first)
end
save(ARGV[2] + 60000)
"""
# ARGV: most bytes, milliseconds that it is kept, id, text, key of its object, most texts. Answers 1, or 0 without room.
PUT_NEW = """
drop(ARGV[3])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 256)) do drop(name) end
local is_kept = total + cost(ARGV[3], ARGV[4]) <= tonumber(ARGV[1])
  and redis.call('ZCARD', KEYS[2]) < tonumber(ARGV[6])
if is_kept then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
  plan(ARGV[5], now + ARGV[2] + 60000)
  total = total + cost(ARGV[3], ARGV[4])
end
save(nil)
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
if last then
  for i = 1, 3 do redis.call('PEXPIREAT', KEYS[i], string.format('%.0f', tonumber(last) + 60000)) end
end
return is_kept and 1 or 0
"""
# Answers ids and texts in turn.
LIST = "return redis.call('HGETALL', KEYS[1])"
# ARGV: id. Answers its text, or nothing.
FIND = """
local left = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') - now
return left > 0 and redis.call('HGET', KEYS[1], ARGV[1]) or nil
"""
# ARGV: ids. Answers how many there were.
DROP = """
local dropped = 0
for _, name in ipairs(ARGV) do dropped = dropped + drop(name) end
save(nil)
return dropped
"""
# ARGV: key of the object, milliseconds after which it is deleted: at once with 0, else no sooner than it was to be. One
# that makes a file a second time, and ends half-way, takes nothing from the file that is there.
PLAN = """
local at = now + ARGV[2]
if ARGV[2] ~= '0' then at = math.max(at, tonumber(redis.call('ZSCORE', KEYS[4], ARGV[1]) or '0')) end
plan(ARGV[1], at)
"""
# ARGV: most keys. Answers objects that are due.
DUE = "return redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, ARGV[1])"
# ARGV: keys of objects that are gone; one that is planned for a later time stays.
DELETED = """
for _, key in ipairs(ARGV) do
  if tonumber(redis.call('ZSCORE', KEYS[4], key) or '0') <= now then redis.call('ZREM', KEYS[4], key) end
end
"""
