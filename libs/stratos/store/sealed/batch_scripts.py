"""Scripts over the keys of ``batch_store``: each begins with ``HEAD`` and is one step of Redis, the clock of leases.

A batch is a hash: s status, h sealed head, t lines, n slices, x the next slice that was never taken, ok and
bad lines, u end of its window, c i f z milliseconds of creation, begin, finalizing and end, w why it ends
(completed, expired, cancelled, failed), o p ids of its files, m sealed problem, l how often results were lost;
e<slice> epoch of a slice, a<slice> milliseconds of its first one, g<slice> the epoch whose result counts, v<slice>
lines of it that were answered and that failed. The slice -1 is the making of its files.
"""

# KEYS: batches of the tenant, hash, leases, open batches of the model.
HEAD = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function get(name) return redis.call('HGET', KEYS[2], name) end
local function number(name) return tonumber(get(name) or '0') end
local function set(...) redis.call('HSET', KEYS[2], ...) end
local function finalize(why) set('s', 'finalizing', 'w', why, 'f', string.format('%.0f', now)) end
local function ends_early() return get('w') or now >= number('u') and 'expired' end
local function lease(slice, ms)
  redis.call('ZADD', KEYS[3], now + ms, slice)
  return redis.call('HINCRBY', KEYS[2], 'e' .. slice, 1)
end
local function owns(slice, epoch)
  return get('e' .. slice) == epoch and redis.call('ZSCORE', KEYS[3], slice)
end
"""
# ARGV: id, member, sealed head, lines, slices, milliseconds of its window, those that it is kept, most batches.
# Answers 1, also where there is one of this id, or 0 where the tenant has too many.
CREATE = """
if get('s') then return 1 end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[7])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[8]) then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[7])
set('s', 'validating', 'h', ARGV[3], 't', ARGV[4], 'n', ARGV[5], 'x', 0, 'ok', 0, 'bad', 0,
  'u', string.format('%.0f', now + ARGV[6]), 'c', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[2], ARGV[7])
redis.call('ZADD', KEYS[4], 0, ARGV[2])
return 1
"""
# ARGV: member, milliseconds of a lease. Answers {slice, epoch} of work that no gateway has, or nothing.
CLAIM = """
redis.call('ZADD', KEYS[4], 'XX', now, ARGV[1])
local status, ms = get('s'), tonumber(ARGV[2])
if status == 'validating' then
  status = 'in_progress'
  set('s', status, 'i', string.format('%.0f', now))
end
local ends = status == 'cancelling' and 'cancelled' or status == 'in_progress' and ends_early()
if ends then
  -- Gateways that have slices stop with the next sign of life, and keep what was answered.
  if #redis.call('ZRANGEBYSCORE', KEYS[3], now, '+inf', 'LIMIT', 0, 1) > 0 then return nil end
  status = 'finalizing'
  finalize(ends)
end
if status == 'in_progress' then
  local slice = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1)[1]
  if not slice and number('x') < number('n') then
    slice = get('x')
    redis.call('HINCRBY', KEYS[2], 'x', 1)
  end
  if slice then
    redis.call('HSETNX', KEYS[2], 'a' .. slice, string.format('%.0f', now))
    return {tonumber(slice), lease(slice, ms)}
  end
elseif status == 'finalizing' then
  if tonumber(redis.call('ZSCORE', KEYS[3], '-1') or '0') <= now then return {-1, lease('-1', ms)} end
else
  redis.call('ZREM', KEYS[4], ARGV[1])
end
return nil
"""
# ARGV: slice, epoch, milliseconds of a lease, 0 to give it up. Answers the status of the batch, "expired" where nothing
# more of it is to be computed, or "fenced".
RENEW = """
if not owns(ARGV[1], ARGV[2]) then return 'fenced' end
redis.call('ZADD', KEYS[3], now + ARGV[3], ARGV[1])
if get('s') == 'in_progress' and ends_early() then return 'expired' end
return get('s')
"""
# ARGV: slice, epoch, lines that were answered, lines that failed. Answers 1, to a second try as well, or 0 where
# another gateway has it.
COMMIT = """
if get('g' .. ARGV[1]) == ARGV[2] then return 1 end
local status = get('s')
if not owns(ARGV[1], ARGV[2]) or (status ~= 'in_progress' and status ~= 'cancelling') then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
set('g' .. ARGV[1], ARGV[2], 'v' .. ARGV[1], ARGV[3] .. ' ' .. ARGV[4])
local num = redis.call('HINCRBY', KEYS[2], 'ok', ARGV[3]) + redis.call('HINCRBY', KEYS[2], 'bad', ARGV[4])
-- A slice that was stopped at the end of the window has lines without an answer.
if num == number('t') and status == 'in_progress' then finalize('completed') end
return 1
"""
# ARGV: epoch of the slice -1, most times, slices and the epochs of their results. Takes back results that are gone, and
# their counts; a batch that was complete goes on with these slices. Answers 1, to a second try as well, or 0 where
# another gateway has it, it lost results that often, or a gateway of 0.1 committed one.
LOSE = """
if not owns('-1', ARGV[1]) then return get('s') == 'in_progress' and 1 or 0 end
if redis.call('HINCRBY', KEYS[2], 'l', 1) > tonumber(ARGV[2]) then return 0 end
local goes_on = get('w') == 'completed'
for place = 3, #ARGV, 2 do
  local good, bad = string.match(get('v' .. ARGV[place]) or '', '(%d+) (%d+)')
  if get('g' .. ARGV[place]) == ARGV[place + 1] then
    if not good then return 0 end
    redis.call('HINCRBY', KEYS[2], 'ok', -good)
    redis.call('HINCRBY', KEYS[2], 'bad', -bad)
    redis.call('HDEL', KEYS[2], 'g' .. ARGV[place], 'v' .. ARGV[place])
  end
  if goes_on then redis.call('ZADD', KEYS[3], 0, ARGV[place]) end
end
if goes_on then
  redis.call('HDEL', KEYS[2], 'w', 'f')
  set('s', 'in_progress')
  redis.call('ZREM', KEYS[3], '-1')
end
return 1
"""
# ARGV: member, slice, epoch, status, ids of the files of answers and errors, sealed problem. Answers 1, to a second try
# as well, or 0.
FINISH = """
if get('z') and get('s') == ARGV[4] and get('e' .. ARGV[2]) == ARGV[3] then return 1 end
if not owns(ARGV[2], ARGV[3]) then return 0 end
set('s', ARGV[4], 'o', ARGV[5], 'p', ARGV[6], 'm', ARGV[7], 'z', string.format('%.0f', now))
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
return 1
"""
# ARGV: slice, epoch, sealed problem. No more of the batch is computed, and its files are made of what was answered.
# Answers 1, or 0 where another gateway has the slice.
FAIL = """
if not owns(ARGV[1], ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
if get('s') == 'in_progress' then set('w', 'failed', 'm', ARGV[3]) end
return 1
"""
# Answers the status before.
CANCEL = """
local status = get('s')
if status == 'validating' or status == 'in_progress' then
  set('s', 'cancelling', 'k', string.format('%.0f', now))
end
return status
"""
