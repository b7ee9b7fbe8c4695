"""Changes of the record store, each one Lua script: readers see all of it or nothing. Every key is declared.

A version is the time in microseconds, and always higher than the one before.
"""

from __future__ import annotations

from stratos.store.tenants import ID_DIGITS, ID_PREFIX, ID_SALT_HEAD

_TENANT = f"""
local function tenant_stands(text, id, condition)
  local found, body = pcall(cjson.decode, text and string.match(text, '^%d+ (.*)$') or '')
  local value = found and type(body) == 'table' and not body['deleted'] and body['value']
  if type(value) ~= 'table' or type(value['cache_salt']) ~= 'string' then return false end
  if value['closing'] and condition ~= 'same' then return false end
  local digest = redis.sha1hex('{ID_SALT_HEAD}' .. string.lower(value['cache_salt']))
  return '{ID_PREFIX}' .. string.sub(digest, 1, {ID_DIGITS}) == id
end
"""

# KEYS: store, records of the kind, changes, audit log, tenants, audit entries of the tenant. ARGV: expected store id
# or "", kind, record id, version seen or "", body, bound of the change stream, audit entry or "", name and id of a
# tenant, condition on it or "". Answers {outcome, version or what stands against the write}.
WRITE = (
    _TENANT
    + """
local id = redis.call('HGET', KEYS[1], 'id')
if not id then return {'unmarked', ''} end
if ARGV[1] ~= '' and ARGV[1] ~= id then return {'foreign', id} end
if ARGV[10] ~= '' and not tenant_stands(redis.call('HGET', KEYS[5], ARGV[8]), ARGV[9], ARGV[10]) then
  return {'gone', ''}
end
local counter = 'num_' .. ARGV[2]
local had = tonumber(redis.call('HGET', KEYS[1], counter) or '0')
if redis.call('HLEN', KEYS[2]) < had then return {'damaged', ''} end
local old = redis.call('HGET', KEYS[2], ARGV[3])
local seen = old and string.match(old, '^(%d+) ') or '0'
if ARGV[4] ~= '' and ARGV[4] ~= seen then return {'conflict', seen} end
local last = redis.call('HGET', KEYS[1], 'revision')
local time = redis.call('TIME')
local revision = math.max(time[1] * 1000000 + time[2], tonumber(last) + 1)
local version = string.format('%.0f', revision)
local text = version .. ' ' .. ARGV[5]
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], version .. '-0',
  'after', last, 'kind', ARGV[2], 'id', ARGV[3], 'text', text)
redis.call('HSET', KEYS[2], ARGV[3], text)
if ARGV[7] ~= '' then
  local at = redis.call('XADD', KEYS[4], '*', 'entry', ARGV[7])
  if ARGV[9] ~= '' then redis.pcall('XADD', KEYS[6], at, 'at', '') end
end
redis.call('HSET', KEYS[1], 'revision', version, counter, redis.call('HLEN', KEYS[2]))
return {'ok', version}
"""
)

# KEYS: store, changes, records of every kind. ARGV: store id, store id that it may replace or "", least revision,
# kinds in the order of their keys. Answers {outcome, store id}. Followers find no change and read everything.
MARK = """
local old = redis.call('HGET', KEYS[1], 'id')
if old and old ~= ARGV[1] and old ~= ARGV[2] then return {'foreign', old} end
local last = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
local time = redis.call('TIME')
local revision = math.max(time[1] * 1000000 + time[2], last + 1, tonumber(ARGV[3]))
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'revision', string.format('%.0f', revision))
for i = 3, #KEYS do redis.call('HSET', KEYS[1], 'num_' .. ARGV[i + 1], redis.call('HLEN', KEYS[i])) end
return {'ok', ARGV[1]}
"""

# KEYS: store. ARGV: store id, revision that was seen, microseconds that clocks may differ at most. A store that came
# back without its last changes, on a server whose clock is behind, counts on from there: the next change is newer than
# what was lost. Answers the revision.
COUNT_ON = """
local id, last = unpack(redis.call('HMGET', KEYS[1], 'id', 'revision'))
local time, seen = redis.call('TIME'), tonumber(ARGV[2])
local ahead = seen - time[1] * 1000000 - time[2]
if id ~= ARGV[1] or seen <= tonumber(last) or ahead <= 0 or ahead > tonumber(ARGV[3]) then return last end
redis.call('HSET', KEYS[1], 'revision', ARGV[2])
return ARGV[2]
"""

# KEYS: records of a kind. ARGV: record id, text, ... A record that is newer stays. Answers how many were put.
RESTORE = """
local num = 0
for i = 1, #ARGV, 2 do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  local known = tonumber(old and string.match(old, '^(%d+) ') or '-1')
  if known < tonumber(string.match(ARGV[i + 1], '^(%d+) ')) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    num = num + 1
  end
end
return num
"""

# KEYS: changes, records of a kind. ARGV: kind, record id or "" for all. Takes older versions of records out of the
# changes: what was destroyed must not be left there. Followers that have not read them read everything.
SCRUB = """
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  if fields['kind'] == ARGV[1] and (ARGV[2] == '' or fields['id'] == ARGV[2])
    and fields['text'] ~= redis.call('HGET', KEYS[2], fields['id']) then
    redis.call('XDEL', KEYS[1], entry[1])
  end
end
"""
