"""Scripts over the keys of ``stream_spill``: texts of records that move to the object store, each script one step.

KEYS: the six of ``stream_scripts``, tenants by the milliseconds of their next look, score of the tenant's oldest record
that may have something to be moved, and objects by the milliseconds at which each one is looked at again.

Meta of a stream has besides: x where its moved texts are, the oldest first, each a list of segment, offset, length,
number of the first block, of the one behind the last, and letters of other fields; xb number of blocks that have moved.
"""

from stratos.store.sealed.stream_scripts import HEAD

NONCE_CHARS = 16
"""First ones of a sealed text, which no other text has."""
ENTRY_BYTES = 96
"""What a record's meta grows by with each move."""

# ARGV: most tenants, milliseconds in which no other gateway looks at them. Answers tenants that are due.
DUE_TENANTS = (
    HEAD
    + """
local found = redis.call('ZRANGEBYSCORE', KEYS[7], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, tenant in ipairs(found) do redis.call('ZADD', KEYS[7], now + ARGV[2], tenant) end
return found
"""
)

# ARGV: tenant, milliseconds until the next look at it. One without records is looked at no more.
LOOKED = (
    HEAD
    + """
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.call('ZREM', KEYS[7], ARGV[1]) end
redis.call('ZADD', KEYS[7], 'XX', now + ARGV[2], ARGV[1])
"""
)

# ARGV: bytes over which records move, bytes that then stay, milliseconds that records are kept, milliseconds after the
# last write in which one moves at the latest, most bytes of texts, most records that are looked at, place of the first
# of those or -1 for the oldest that may have something. Answers {bytes of the tenant, place of the next or -1, and of
# each record that is to move {id, field, text, field, text, ...}}.
LOOK = (
    HEAD
    + """
local most, count, place = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local total, taken, found = tonumber(redis.call('GET', KEYS[3]) or '0'), 0, {}
local need = total > tonumber(ARGV[1]) and total - ARGV[2] or 0
local settled = place < 0
if settled then place = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. (redis.call('GET', KEYS[8]) or '0')) end
local function movable(meta, id)
  local has_ended = meta.s == 'done' or meta.s == 'failed'
  local is_left = has_ended or not meta.q and (meta.o == '' or meta.l <= now - 60000)
  local fields, size = has_ended and {'h', 'd'} or {'h'}, 0
  for block = math.max(0, (meta.xb or 0) - 1), is_left and meta.n - 1 or meta.n - 2 do table.insert(fields, block) end
  for _, field in ipairs(fields) do size = size + redis.call('HSTRLEN', KEYS[1], id .. '/' .. field) end
  return fields, size, is_left and 256 or math.max(1024, 256 * #(meta.x or {}))
end
local rows, mark = redis.call('ZRANGE', KEYS[2], place, place + count - 1, 'WITHSCORES'), nil
local has_more = #rows == 2 * count
for at = 1, #rows, 2 do
  if taken >= most then
    has_more = true
    break
  end
  local id, ends = rows[at], tonumber(rows[at + 1])
  local text = ends > now and redis.call('HGET', KEYS[1], id)
  if text then
    local meta = cjson.decode(text)
    local fields, size, least = movable(meta, id)
    settled = settled and size < least and meta.s ~= 'open'
    if size >= least and (taken < need or ends <= now + ARGV[3] - ARGV[4]) then
      local record = {id}
      for _, field in ipairs(fields) do
        local part = redis.call('HGET', KEYS[1], id .. '/' .. field)
        if part then
          table.insert(record, tostring(field))
          table.insert(record, part)
        end
      end
      table.insert(found, record)
      taken = taken + size
    end
  end
  if settled then mark = rows[at + 1] end
  place = place + 1
end
if mark then redis.call('SET', KEYS[8], mark, 'PX', ARGV[3] + 60000) end
return {total, has_more and place or -1, found}
"""
)

# ARGV: name of the segment, its object, milliseconds that the object outlives its records, JSON of a list for each
# record: id, offset, length, first block, the one behind the last, letters, and of each text field and nonce. A record
# whose texts are not the ones that were read stays as it is. Answers how many have moved, and their bytes.
COMMIT = (
    HEAD
    + """
local moved, freed, latest = 0, 0, now
for _, row in ipairs(cjson.decode(ARGV[4])) do
  local id, offset, length, first, behind, letters, fields = unpack(row)
  local meta, size = living(KEYS, id), 0
  for _, field in ipairs(fields) do
    local text = meta and redis.call('HGET', KEYS[1], id .. '/' .. field[1])
    if not text or string.sub(text, 1, #field[2]) ~= field[2] then meta = nil else size = size + #text end
  end
  if meta then
    for _, field in ipairs(fields) do redis.call('HDEL', KEYS[1], id .. '/' .. field[1]) end
    meta.x = meta.x or {}
    table.insert(meta.x, {ARGV[1], offset, length, first, behind, letters})
    meta.xb, meta.b = math.max(meta.xb or 0, behind), meta.b - size + ENTRY_BYTES
    add_bytes(KEYS, ENTRY_BYTES - size)
    redis.call('HSET', KEYS[1], id, cjson.encode(meta))
    latest = math.max(latest, tonumber(redis.call('ZSCORE', KEYS[2], id)) + ARGV[3])
    moved, freed = moved + 1, freed + size
  end
end
redis.call('ZADD', KEYS[9], latest, ARGV[2])
return {moved, freed}
""".replace("ENTRY_BYTES", str(ENTRY_BYTES))
)

# ARGV: object, milliseconds until it is looked at.
PLAN = HEAD + "redis.call('ZADD', KEYS[9], now + ARGV[2], ARGV[1])"

# ARGV: most objects. Answers those that are due.
DUE = HEAD + "return redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now, 'LIMIT', 0, ARGV[1])"

# ARGV: segment, its object, milliseconds that the object outlives its records, ids of those. Answers 1 where one of
# them is kept still: the object is looked at again after that.
IS_NEEDED = (
    HEAD
    + """
local latest = 0
for place = 4, #ARGV do
  local meta = living(KEYS, ARGV[place])
  for _, entry in ipairs(meta and meta.x or {}) do
    if entry[1] == ARGV[1] then latest = math.max(latest, tonumber(redis.call('ZSCORE', KEYS[2], ARGV[place]))) end
  end
end
if latest == 0 then return 0 end
redis.call('ZADD', KEYS[9], latest + ARGV[3], ARGV[2])
return 1
"""
)

# ARGV: objects that are gone.
DELETED = HEAD + "if #ARGV > 0 then redis.call('ZREM', KEYS[9], unpack(ARGV)) end"
