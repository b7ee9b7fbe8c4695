"""Windows of promises in Lua: what one entry adds to its window, and the p99s of a window for people.

<prefix>:ledger:windows:<tenant>:<part>          hash, plan|seconds|number -> counts; of a quarter of a day
<prefix>:ledger:missed:<tenant>:<day>            hash, the same, of windows that missed; kept as entries are
<prefix>:ledger:histogram:<tenant>:<window>      a count of 4 bytes for each step of each promise

A window takes entries until ``WINDOWS_KEPT_S`` after its quarter's end, by the clock of Redis; what comes later changes
no window.  So its counts need not be there for ever, and are bounded by tenants.
"""

from __future__ import annotations

from stratos.core.ledger.steps import NUM_BUCKETS, ONE_IN
from stratos.core.ledger.windows import PER_MICRO_UNIT

PART_S = 6 * 3600
"""Of a day; a multiple of every length of a window."""
WINDOWS_KEPT_S = 2 * 24 * 3600
HISTOGRAM_KEPT_S = 15 * 60
FIELDS = (
    "num", "num_ttft", "num_ttft_over", "num_itl", "num_itl_over", "stake", "credit", "ttft_p99", "itl_p99",
    "is_counted",
)  # fmt: skip
"""Numbers of a window in the order of its text. The p99s are steps of the histogram, -1 where they are not known."""

_WINDOW = f"""
local NUM, TTFT, TTFT_OVER, ITL, ITL_OVER, STAKE, CREDIT, TTFT_P99, ITL_P99, COUNTED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local function whole(number) return string.format('%.0f', number) end
local function window_of(text)
  local window = {{}}
  for number in string.gmatch(text or '0,0,0,0,0,0,0,-1,-1,0', '[^,]+') do table.insert(window, tonumber(number)) end
  return window
end
local function window_text(window)
  local parts = {{}}
  for place, number in ipairs(window) do parts[place] = whole(number) end
  return table.concat(parts, ',')
end
local function is_beyond(num, over) return over > math.floor(num / {ONE_IN}) end
local function is_missed(window)
  return is_beyond(window[TTFT], window[TTFT_OVER]) or is_beyond(window[ITL], window[ITL_OVER])
end
local function is_judged(window) return window[TTFT] + window[ITL] > 0 end
"""

# Part of the script that writes entries. Where an entry belongs its caller says: keys of windows, missed windows and
# histogram, the window that this is of, seconds that missed windows are kept, sums, spend and month.
ADD_TO_WINDOW = (
    _WINDOW
    + f"""
local now_s = tonumber(redis.call('TIME')[1])
local function count_window(at, name, number)
  if number ~= 0 then
    redis.call('HINCRBY', at.sums, string.rep(string.char(31), 3) .. name, whole(number))
  end
end
local function count_times(at, field, ends_s, steps, promise, sign)
  if not steps or #steps == 0 or field ~= at.histogram_of or now_s >= ends_s + {HISTOGRAM_KEPT_S} then return end
  local command = {{'BITFIELD', at.histogram, 'OVERFLOW', 'SAT'}}
  for place = 1, #steps - 1, 2 do
    table.insert(command, 'INCRBY')
    table.insert(command, 'u32')
    table.insert(command, '#' .. whole(promise * {NUM_BUCKETS} + steps[place]))
    table.insert(command, whole(sign * steps[place + 1]))
  end
  redis.call(unpack(command))
  if redis.call('TTL', at.histogram) < 0 then
    redis.call('EXPIREAT', at.histogram, whole(ends_s + {HISTOGRAM_KEPT_S}))
  end
end
-- A window of which Redis has lost the counts is judged as it was: what is taken out of it is not put into a new one.
local function add_to_window(at, value, sign)
  local share = value['w']
  if not share then return end
  local arrived_s = math.floor((value['arrived_unix_ms'] or 0) / 1000)
  local closes_s = (math.floor(arrived_s / {PART_S}) + 1) * {PART_S} + {WINDOWS_KEPT_S}
  if now_s >= closes_s then return end
  local number = math.floor(arrived_s / share['s'])
  local field = (value['plan'] or '') .. '|' .. whole(share['s']) .. '|' .. whole(number)
  local window = window_of(redis.call('HGET', at.windows, field))
  if sign < 0 and window[NUM] == 0 then at.lost = field end
  if at.lost == field then return end
  local judged, missed, credit = is_judged(window) and 1 or 0, 0, window[CREDIT]
  if judged == 1 and is_missed(window) then missed = 1 end
  window[NUM] = window[NUM] + sign
  if share['t'] then
    window[TTFT], window[TTFT_OVER] = window[TTFT] + sign, window[TTFT_OVER] + sign * (share['to'] or 0)
  end
  local itls, itls_over, itl_steps = share['n'] or 0, share['no'] or 0, share['h']
  if share['i'] then -- by a version that counted the mean of each answer
    itls, itls_over, itl_steps = 1, share['io'] or 0, {{share['i'], 1}}
  end
  window[ITL], window[ITL_OVER] = window[ITL] + sign * itls, window[ITL_OVER] + sign * itls_over
  window[STAKE] = window[STAKE] + sign * (share['k'] or 0)
  window[CREDIT] = is_missed(window) and math.floor(window[STAKE] / {PER_MICRO_UNIT}) or 0
  window[TTFT_P99], window[ITL_P99] = -1, -1
  count_times(at, field, (number + 1) * share['s'], share['t'] and {{share['t'], 1}}, 0, sign)
  count_times(at, field, (number + 1) * share['s'], itl_steps, 1, sign)
  count_window(at, 'windows', (is_judged(window) and 1 or 0) - judged)
  count_window(at, 'missed_windows', (is_missed(window) and 1 or 0) - missed)
  count_window(at, 'window_credit', window[CREDIT] - credit)
  if credit ~= window[CREDIT] then redis.call('HINCRBY', at.spend, at.month, whole(credit - window[CREDIT])) end
  if window[NUM] > 0 then
    redis.call('HSET', at.windows, field, window_text(window))
    if window[NUM] == 1 then redis.call('EXPIREAT', at.windows, whole(closes_s)) end
  else
    redis.call('HDEL', at.windows, field)
  end
  if is_missed(window) then
    redis.call('HSET', at.missed, field, window_text(window))
    if missed == 0 and redis.call('TTL', at.missed) < 0 then redis.call('EXPIRE', at.missed, at.kept_s) end
  elseif missed == 1 then
    redis.call('HDEL', at.missed, field)
  end
end
"""
)

# KEYS: windows, missed windows, histogram. ARGV: the window, 1 to count it. Answers its text, and whether it was
# counted now; nothing where it is not there any more. The p99s are those of the histogram, as long as that is there.
LOOK = (
    _WINDOW
    + f"""
local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then return false end
local window = window_of(text)
local function p99(promise, num)
  if num <= 0 then return -1 end
  local first = promise * {4 * NUM_BUCKETS}
  local counts = redis.call('GETRANGE', KEYS[3], first, first + {4 * NUM_BUCKETS} - 1)
  local seen, above = 0, math.floor(num / {ONE_IN})
  for bucket = #counts / 4 - 1, 0, -1 do
    seen = seen + struct.unpack('>I4', counts, bucket * 4 + 1)
    if seen > above then return bucket end
  end
  return -1
end
if window[TTFT_P99] < 0 then window[TTFT_P99] = p99(0, window[TTFT]) end
if window[ITL_P99] < 0 then window[ITL_P99] = p99(1, window[ITL]) end
local is_counted = ARGV[2] == '1' and window[COUNTED] == 0 and 1 or 0
if is_counted == 1 then window[COUNTED] = 1 end
redis.call('HSET', KEYS[1], ARGV[1], window_text(window))
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then redis.call('HSET', KEYS[2], ARGV[1], window_text(window)) end
return {{window_text(window), is_counted}}
"""
)
