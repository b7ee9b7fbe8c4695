"""Scripts over the keys of ``stream_store``: each is one step of Redis, which is the only clock of leases.

Meta of a stream, as JSON: s state (open, done, cancelled, failed), o owner ("" before the first one and after it gave
up; a cancelled one keeps its last), e epoch, l end of the lease in milliseconds, f fingerprint of the request's body, n
number of blocks, b bytes of all its fields; w gateway that wrote the newest block, whose frames have what came since,
t its number in them, wn number of blocks then, wf turn of the newest frame, which the block has all of, wm the gateway
once more where its frames are named by their turns; p pieces in all blocks, and pn number of blocks then; and of one
without a client q, the milliseconds that it is kept while it is open.  Gateways of older versions write blocks without
wm, and each frame in one of 16 places, or without p and pn.

Of one that has texts in the object store ``spill_scripts`` has more.

Frames of a tenant: <gateway>/<turn> the newest tokens of all its streams there, <gateway>/n turn and <gateway>/t
milliseconds of the last one, <gateway>! ids of streams that it is to look after, since it lost them.
"""

MOST_TURNS = 256
"""Newest turns of a gateway in which frames are looked for."""
OLD_SLOTS = 16
"""Places for frames of a gateway of the version before."""

# KEYS: hash, ends, bytes, queue of one tenant, tenants that have a queue, and frames of the tenant.
HEAD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function add_bytes(keys, number) if number ~= 0 then redis.call('INCRBY', keys[3], number) end end
local function drop(keys, id)
  local text = redis.call('HGET', keys[1], id)
  redis.call('ZREM', keys[2], id)
  redis.call('ZREM', keys[4], id)
  if not text then return end
  local meta = cjson.decode(text)
  redis.call('HDEL', keys[1], id, id .. '/h', id .. '/d')
  for block = 0, meta.n - 1 do redis.call('HDEL', keys[1], id .. '/' .. block) end
  add_bytes(keys, -meta.b)
end
local function living(keys, id)
  local text = redis.call('HGET', keys[1], id)
  if not text then return nil end
  if tonumber(redis.call('ZSCORE', keys[2], id) or '0') <= now then
    drop(keys, id)
    return nil
  end
  return cjson.decode(text)
end
local function save(keys, id, meta, ttl)
  if meta.s ~= 'open' then redis.call('ZREM', keys[4], id) elseif meta.q then ttl = meta.q end
  redis.call('HSET', keys[1], id, cjson.encode(meta))
  redis.call('ZADD', keys[2], now + ttl, id)
end
local function keep(keys)
  local last = redis.call('ZRANGE', keys[2], -1, -1, 'WITHSCORES')[2]
  if not last then return end
  local at = string.format('%.0f', tonumber(last) + 60000)
  for place = 1, 6 do if place ~= 5 then redis.call('PEXPIREAT', keys[place], at) end end
end
local function tell(keys, owner, id)
  local told = redis.call('HGET', keys[6], owner .. '!') or ''
  if owner == '' or #told > 4096 then return end
  redis.call('HSET', keys[6], owner .. '!', told .. ' ' .. id)
  redis.call('HSETNX', keys[6], owner .. '/t', string.format('%.0f', now))
end
local function drop_frames(keys, before)
  local fields, living = redis.call('HKEYS', keys[6]), {}
  for _, field in ipairs(fields) do
    local owner = string.match(field, '^(.*)/t$')
    if owner then living[owner] = tonumber(redis.call('HGET', keys[6], field)) >= before end
  end
  for _, field in ipairs(fields) do
    local owner = string.match(field, '^(.*)/%w+$') or string.match(field, '^(.*)!$')
    if not living[owner] then redis.call('HDEL', keys[6], field) end
  end
end
local function last_turn(keys, owner) return tonumber(redis.call('HGET', keys[6], owner .. '/n') or '0') end
local function put(keys, id, meta, field, text)
  local before = redis.call('HSTRLEN', keys[1], id .. '/' .. field)
  redis.call('HSET', keys[1], id .. '/' .. field, text)
  meta.b = meta.b + #text - before
  add_bytes(keys, #text - before)
end
-- A call that comes late puts nothing; false where Redis has lost pieces that were written before.
local function put_block(keys, id, meta, block, text, owner, number, before, pieces)
  local known = meta.pn == meta.n and meta.p
  if block < 0 then return not known or pieces <= known end
  if block < meta.n - 1 or (block == meta.n - 1 and known and pieces < known) then return true end
  if block > meta.n or (block == meta.n and known and before ~= known) then return false end
  put(keys, id, meta, block, text)
  meta.n = math.max(meta.n, block + 1)
  meta.w, meta.t, meta.wn, meta.wf, meta.wm = owner, number, meta.n, last_turn(keys, owner), owner
  meta.p, meta.pn = pieces, meta.n
  return true
end
"""

# KEYS: besides, tenants by the milliseconds at which it is looked whether texts of theirs are to move. ARGV: id,
# gateway, milliseconds of a lease, milliseconds that it is kept, fingerprint or "", sealed head or "" to make none,
# first block that is wanted, 1 where a stream without a living owner may be taken, most bytes, most streams,
# milliseconds that one without a client is kept while it is open (0 for others), most of those, tenant, bytes over
# which texts move at once (0 where none ever do), milliseconds after which it is looked in any case, 1 where the head
# is wanted.
# Answers {what, epoch, head, end, gateway of the frames, number in them, turns of the first and of the last that go on
# from the newest block, 1 where those are named by their turns, JSON of where texts were moved or "", block, ...}.
OPEN = (
    HEAD
    + """
local id, owner, lease, ttl, first = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[7])
local meta = living(KEYS, id)
if not meta then
  if ARGV[6] == '' then return {'none', 0, '', '', '', 0, 1, 0, 1, ''} end
  meta = {s = 'open', o = owner, e = 1, l = now + lease, f = ARGV[5], n = 0, b = 2 * #id + 400}
  if ARGV[11] ~= '0' then
    if redis.call('ZCARD', KEYS[4]) >= tonumber(ARGV[12]) then return {'full', 0, '', '', '', 0, 1, 0, 1, ''} end
    meta.o, meta.e, meta.l, meta.q = '', 0, 0, tonumber(ARGV[11])
    redis.call('ZADD', KEYS[4], now, id)
    redis.call('ZADD', KEYS[5], 'NX', 0, ARGV[13])
  end
  add_bytes(KEYS, meta.b)
  put(KEYS, id, meta, 'h', ARGV[6])
  save(KEYS, id, meta, ttl)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 64)) do drop(KEYS, old) end
  while tonumber(redis.call('GET', KEYS[3]) or '0') > tonumber(ARGV[9])
    or redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[10]) do
    local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not oldest or oldest == id then break end
    drop(KEYS, oldest)
  end
  keep(KEYS)
  if ARGV[14] ~= '0' then
    local is_over = tonumber(redis.call('GET', KEYS[3])) > tonumber(ARGV[14])
    redis.call('ZADD', KEYS[7], 'LT', is_over and now or now + ARGV[15], ARGV[13])
  end
  return {'made', meta.e, '', '', '', 0, 1, 0, 1, ''}
end
if ARGV[5] ~= '' and meta.f ~= ARGV[5] then return {'other', meta.e, '', '', '', 0, 1, 0, 1, ''} end
local what, writer, number, from, last = meta.s, meta.w or '', meta.t or 0, 1, 0
if what == 'open' then what = ARGV[8] == '1' and (meta.o == '' or meta.l <= now) and 'taken' or 'live' end
if what ~= 'done' and first < meta.n and meta.wn == meta.n then
  from, last = meta.wf + 1, last_turn(KEYS, writer)
end
if what == 'taken' then
  tell(KEYS, meta.o, id)
  meta.o, meta.e, meta.l = owner, meta.e + 1, now + lease
  save(KEYS, id, meta, ttl)
  keep(KEYS)
end
local function text(field) return redis.call('HGET', KEYS[1], id .. '/' .. field) or '' end
local head = ARGV[16] == '1' and text('h') or ''
local found = {what, meta.e, head, text('d'), writer, number, from, last, meta.wm == writer and 1 or 0,
  meta.x and cjson.encode(meta.x) or ''}
for block = first, meta.n - 1 do
  table.insert(found, text(block))
end
return found
"""
)

# KEYS: those of each tenant in turn. ARGV: gateway, milliseconds of a lease, milliseconds that streams
# are kept, and one JSON of a list for each stream, as many arguments cost the gateway several times that: place of its
# tenant from 0, id, epoch, number of its block or -1, text of that block, what follows ("" go on, "d" done, "r" given
# up), text of the end, or of where it runs, number of the stream in frames of this gateway, pieces before its newest
# block and with it. Another JSON has the frames: place of the tenant, turn, text or "", fields of frames that nothing
# needs any more. A third one has streams whose lease alone is renewed: place of the tenant, ids and epochs with blanks
# between. Answers a letter for each stream (ok, fenced, cancelled, gone) and the ids of streams of these tenants that
# the gateway has lost, each after a blank. A stream is gone, too, where Redis has lost pieces of it: it is given up, so
# who takes it over goes on from what is left.
WRITE = (
    HEAD
    + """
local owner, lease, ttl, found = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), {}
local function keys_of(place) return {unpack(KEYS, 6 * place + 1, 6 * place + 6)} end
for _, row in ipairs(cjson.decode(ARGV[4])) do
  local place, id, epoch, block, text, ends, last, number, before, pieces = unpack(row)
  local keys = keys_of(place)
  local meta, what = living(keys, id), 'o'
  if not meta then
    what = 'g'
  elseif meta.s == 'cancelled' then
    what = 'c'
    if meta.o == owner and meta.e == epoch then
      put_block(keys, id, meta, block, text, owner, number, before, pieces)  -- what came before it was told
      save(keys, id, meta, ttl)
    end
  elseif meta.s ~= 'open' or meta.o ~= owner or meta.e ~= epoch then
    what = 'f'
  else
    meta.l = now + lease
    if not put_block(keys, id, meta, block, text, owner, number, before, pieces) then
      what, meta.o = 'g', ''
    elseif ends == 'd' then
      meta.s, meta.o = 'done', ''
      put(keys, id, meta, 'd', last)
    else
      if last ~= '' then put(keys, id, meta, 'd', last) end
      if ends == 'r' then meta.o = '' end
    end
    save(keys, id, meta, ttl)
  end
  table.insert(found, what)
end
for _, frame in ipairs(cjson.decode(ARGV[5])) do
  local keys, turn, text = keys_of(frame[1]), frame[2], frame[3]
  if text ~= '' and redis.call('EXISTS', keys[1]) == 1 then  -- without a record nothing would ever end them
    redis.call('HSET', keys[6], owner .. '/' .. turn, text, owner .. '/n', turn,
      owner .. '/t', string.format('%.0f', now))
  end
  if #frame[4] > 0 then redis.call('HDEL', keys[6], unpack(frame[4])) end
  local told = redis.call('HGET', keys[6], owner .. '!')
  if told then
    redis.call('HDEL', keys[6], owner .. '!')
    table.insert(found, told)
  end
  if turn % 64 == 0 then drop_frames(keys, now - ttl) end
end
for _, part in ipairs(cjson.decode(ARGV[6])) do
  local keys = keys_of(part[1])
  for id, epoch in string.gmatch(part[2], '(%S+) (%d+)') do
    local meta = living(keys, id)
    if meta and meta.s == 'open' and meta.o == owner and meta.e == tonumber(epoch) then
      meta.l = now + lease
      save(keys, id, meta, ttl)
    else
      table.insert(found, ' ' .. id)
    end
  end
end
for place = 0, #KEYS / 6 - 1 do keep(keys_of(place)) end
return table.concat(found)
"""
)

# ARGV: id, milliseconds that it is kept. Answers the state before, or none.
CANCEL = (
    HEAD
    + """
local meta = living(KEYS, ARGV[1])
if not meta then return 'none' end
local before = meta.s
if before == 'open' then
  tell(KEYS, meta.o, ARGV[1])
  meta.s = 'cancelled'
  save(KEYS, ARGV[1], meta, tonumber(ARGV[2]))
  keep(KEYS)
end
return before
"""
)

# ARGV: tenant, milliseconds in which one that is found is not looked for again. Answers {id, epoch} of a stream without
# a client that is due and that no gateway has, or nothing.
CLAIM = (
    HEAD
    + """
redis.call('ZADD', KEYS[5], now, ARGV[1])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 16)) do
  local meta = living(KEYS, id)
  if not meta or meta.s ~= 'open' then
    redis.call('ZREM', KEYS[4], id)
  elseif meta.o ~= '' and meta.l > now then
    redis.call('ZADD', KEYS[4], meta.l, id)
  else
    redis.call('ZADD', KEYS[4], now + ARGV[2], id)
    return {id, meta.e}
  end
end
if redis.call('ZCARD', KEYS[4]) == 0 then redis.call('ZREM', KEYS[5], ARGV[1]) end
return nil
"""
)

# ARGV: id, gateway, which gives it up, milliseconds until it is due.
DELAY = (
    HEAD
    + """
local id = ARGV[1]
local meta = living(KEYS, id)
if not meta or meta.s ~= 'open' or (meta.o ~= '' and meta.o ~= ARGV[2]) then return end
meta.o = ''
redis.call('HSET', KEYS[1], id, cjson.encode(meta))
redis.call('ZADD', KEYS[4], 'XX', now + ARGV[3], id)
"""
)

# ARGV: id, gateway, milliseconds that it is kept, sealed end. Ends a stream that no other gateway has.
FAIL = (
    HEAD
    + """
local id = ARGV[1]
local meta = living(KEYS, id)
if not meta or meta.s ~= 'open' or (meta.o ~= '' and meta.o ~= ARGV[2] and meta.l > now) then return 0 end
meta.s, meta.o = 'failed', ''
put(KEYS, id, meta, 'd', ARGV[4])
save(KEYS, id, meta, tonumber(ARGV[3]))
keep(KEYS)
return 1
"""
)

# ARGV: id, gateway, epoch in which it is removed only if that gateway has it, 0 for any. Answers 1 where there was one.
DROP = (
    HEAD
    + """
local meta = living(KEYS, ARGV[1])
if not meta or (ARGV[3] ~= '0' and (meta.o ~= ARGV[2] or meta.e ~= tonumber(ARGV[3]))) then return 0 end
drop(KEYS, ARGV[1])
return 1
"""
)
