-- Limits: what is counted against them, and how much room they have. A limit is its name, `definition` or `definition:key`; its numbers are those of
-- its definition, and without one it counts but never closes, so that what was charged can be given back.
-- A task that was counted against its rates when it was submitted (`on_limit` reject) waits under the caps alone: its lane names the limit with CAP in front. That
-- is the same limit, with the same number of running tasks, seen without its rate.

local Limit = {all = {}, definitions = {}}

local CAP = '='  -- no name begins with it

-- The limit itself, whether its rate counts or not.
function Limit.whole(name) return string.sub(name, 1, 1) == CAP and string.sub(name, 2) or name end

local function definition_of(name)
  local base = string.match(Limit.whole(name), '^[^:]*')
  local d = Limit.definitions[base]
  if d == nil then
    local raw = call('HGET', P .. 'limits', base)
    d = raw and cmsgpack.unpack(raw) or {false, 1000000, false}  -- rate, window, cap
    Limit.definitions[base] = d
  end
  return d
end

-- The limit as this step sees it: read once, counted in memory, written by save.
function Limit.get(name)
  local l = Limit.all[name]
  if l then return l end
  local d, whole = definition_of(name), Limit.whole(name)
  if whole ~= name then
    l = {name = name, of = Limit.get(whole), cap = d[3]}
    Limit.all[name] = l
    return l
  end
  local raw = call('GET', P .. 'c:' .. name)
  local c = raw and cmsgpack.unpack(raw) or {0, 0, 0}  -- running, used, idle_at
  l = {name = name, rate = d[1], window = d[2], cap = d[3], running = c[1], used = c[2], idle_at = c[3], started = 0, key = P .. 'w:' .. name}
  l.grain = math.max(1000, math.floor(l.window / 1000))
  Limit.all[name] = l
  if l.rate then Limit.look(l) end
  return l
end

local function rounded_up(l, at) return math.ceil(at / l.grain) * l.grain end

-- A start in the log: its (rounded up) time and how many.
local function entry(text)
  local at, n = string.match(text, '^(%d+) (%d+)$')
  return tonumber(at), tonumber(n)
end

-- What has left the window is forgotten. If the clock was set back the log goes with it, as if no time had passed: the window is never exceeded, and never stands still.
function Limit.look(l)
  local last = call('LINDEX', l.key, -1)
  if not last then
    l.used = 0
    return
  end
  local ahead = entry(last) - rounded_up(l, S.now)
  if ahead > 0 then
    local all = call('LRANGE', l.key, 0, -1)
    for i, text in ipairs(all) do
      local at, n = entry(text)
      call('LSET', l.key, i - 1, int(at - ahead) .. ' ' .. int(n))
    end
  end
  while true do
    local first = call('LINDEX', l.key, 0)
    if not first then
      l.used = 0
      return
    end
    local at, n = entry(first)
    if at > S.now - l.window then return end
    call('LPOP', l.key)
    l.used = l.used - n
    l.changed = true
  end
end

-- How many more may start now.
function Limit.room(l)
  local room = l.cap and l.cap - (l.of or l).running or 1073741824
  if l.rate then room = math.min(room, l.rate - l.used) end
  return math.max(room, 0)
end

function Limit.count(l, n)
  if l.rate then
    l.used = l.used + n
    l.started = l.started + n
  end
end

function Limit.start(l, n)
  local whole = l.of or l
  whole.running = whole.running + n
  whole.changed = true
  Limit.count(l, n)
end

function Limit.full_rate(l) return l.rate and l.used >= l.rate end

-- When the oldest start leaves the window.
function Limit.next_room_at(l)
  local first = call('LINDEX', l.key, 0)
  return first and (entry(first)) + l.window or nil
end

-- Times are rounded up to a thousandth of the window: never over, at most 0.1 % late, at most 1,000 entries.
function Limit.save(l)
  l = l.of or l
  if not l.changed and l.started == 0 then return end
  l.idle_at = math.max(l.idle_at, l.started > 0 and S.now + l.window + l.grain or S.now)
  if l.started > 0 then
    local at = rounded_up(l, S.now)
    local last = call('LINDEX', l.key, -1)
    local last_at, n = nil, nil
    if last then last_at, n = entry(last) end
    if last_at == at then
      call('LSET', l.key, -1, int(at) .. ' ' .. int(n + l.started))
    else
      call('RPUSH', l.key, int(at) .. ' ' .. int(l.started))
    end
    l.started = 0
  end
  call('SET', P .. 'c:' .. l.name, pack({l.running, l.used, l.idle_at}))
  if l.running == 0 then call('ZADD', P .. 'unused', l.idle_at, l.name) else call('ZREM', P .. 'unused', l.name) end
  l.changed = false
end
