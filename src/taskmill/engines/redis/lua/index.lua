-- Tasks of one state, newest first, by its index.
-- A: {state, number behind which to go on|false, n}   answers {{number, id, …}, how far that is complete: a number, or false at the end}

local FEW, LOOKED, SLICE = 5000, 20000, 1000
local state, after, n = A[1], A[2], A[3]
local start = after and '(' .. int(after) or '+inf'

local function answer(found, reached) return pack({found, reached}) end

-- These tasks, sorted. Each is {number, id}.
local function sorted(tasks)
  table.sort(tasks, function(a, b) return a[1] > b[1] end)
  local found = {}
  for _, t in ipairs(tasks) do
    if not after or t[1] < after then found[#found + 1], found[#found + 2] = t[1], t[2] end
    if #found >= 2 * n then return answer(found, t[1]) end
  end
  return answer(found, false)
end

-- The same, of ids whose numbers are to be looked up.
local function by_id(ids)
  local tasks = {}
  for first = 1, #ids, SLICE do
    for i, number in ipairs(call('ZMSCORE', P .. 'ids', unpack(ids, first, math.min(first + SLICE - 1, #ids)))) do
      if number then tasks[#tasks + 1] = {tonumber(number), ids[first + i - 1]} end
    end
  end
  return sorted(tasks)
end

-- Past all ids: those that `wanted` picks by which of these sets they are in.
local function scanned(sets, wanted)
  local found, reached = {}, false
  for _ = 1, LOOKED / SLICE do
    local some = call('ZREVRANGEBYSCORE', P .. 'ids', start, '-inf', 'WITHSCORES', 'LIMIT', 0, SLICE)
    if #some == 0 then return answer(found, false) end
    local ids, inside = {}, {}
    for i = 1, #some, 2 do ids[#ids + 1] = some[i] end
    for _, set in ipairs(sets) do
      for i, score in ipairs(call('ZMSCORE', P .. set, unpack(ids))) do inside[i] = inside[i] or score end
    end
    for i, id in ipairs(ids) do
      reached = tonumber(some[2 * i])
      if wanted(inside[i]) then found[#found + 1], found[#found + 2] = reached, id end
      if #found >= 2 * n then return answer(found, reached) end
    end
    start = '(' .. int(reached)
  end
  return answer(found, reached)
end

local function running()
  local ids = {}
  for _, worker in ipairs(call('HKEYS', P .. 'workers')) do
    for _, lease in ipairs(leases_of(worker)) do ids[#ids + 1] = lease[3] end
  end
  return by_id(ids)
end

local function completed()
  local key = P .. 'ended:' .. COMPLETED
  if call('ZCARD', key) <= FEW then return by_id(call('ZRANGE', key, 0, -1)) end
  return scanned({'ended:' .. COMPLETED}, function(inside) return inside end)
end

-- The lines in which tasks that can be claimed stand; nil, if there are too many.
local function lines()
  local keys = {}
  for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
    for p = 0, 3 do keys[#keys + 1] = P .. 'q:' .. queue .. ':' .. p end
  end
  if call('HLEN', P .. 'lanes') > FEW / 4 then return nil end
  for _, lane in ipairs(call('HVALS', P .. 'lanes')) do
    for p = 0, 3 do keys[#keys + 1] = P .. 'l:' .. lane .. ':' .. p end
  end
  return keys
end

-- Those that stand in lines, and those whose time has come that nobody has looked at since.
local function pending()
  local tasks, due = {}, call('ZRANGEBYSCORE', P .. 'due', '-inf', S.now, 'LIMIT', 0, FEW)
  for _, key in ipairs(lines() or {'none'}) do
    if key == 'none' or #tasks + #due + call('ZCOUNT', key, '-inf', S.now) > FEW then
      return scanned({'ended:' .. COMPLETED, 'ended:' .. DEAD, 'ended:' .. CANCELLED}, function(inside) return not inside end)
    end
    for _, m in ipairs(call('ZRANGEBYSCORE', key, '-inf', S.now)) do tasks[#tasks + 1] = {tonumber(string.sub(m, 1, 12), 16), id_in(m)} end
  end
  local seen = {}
  for _, t in ipairs(tasks) do seen[t[2]] = true end
  for _, id in ipairs(due) do
    local number = not seen[id] and call('ZSCORE', P .. 'ids', id)
    if number then tasks[#tasks + 1] = {tonumber(number), id} end
  end
  return sorted(tasks)
end

if state == RUNNING then return running() end
if state == COMPLETED then return completed() end
if state == PENDING then return pending() end
local found = call('ZREVRANGEBYSCORE', P .. 'in:' .. state, start, '-inf', 'WITHSCORES', 'LIMIT', 0, n)
for i = 1, #found, 2 do found[i], found[i + 1] = tonumber(found[i + 1]), found[i] end
return answer(found, #found == 2 * n and found[#found - 1])
