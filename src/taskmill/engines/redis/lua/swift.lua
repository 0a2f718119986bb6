-- Claim, where there is nothing but plain lines: no lane is open and nothing is due. Then records need not be looked at: they are answered as they
-- are, and only leases are written. Where that does not hold, or a task stands in the way, nothing is done and claim.lua is asked.
-- A: as claim.lua   answers 'full', or {next_at|false, now, first token, ids (one string), generation}, with the records from before the claim

local worker, request, slots, ahead, bytes, rooms_of = A[1], A[2], A[4], A[5], A[6], A[7]
local due, wakes = call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')[2], call('ZRANGE', P .. 'wakes', 0, 0, 'WITHSCORES')[2]
local next_at = math.min(due and tonumber(due) or FAR, wakes and tonumber(wakes) or FAR)
local known = call('HGET', P .. 'workers', worker)
if not known or next_at <= S.now or request <= tonumber(call('HGET', P .. 'requests', worker) or '0') then return pack('full') end
if call('EXISTS', P .. 'falling') == 1 then return pack('full') end

local paused, rooms, queues = {}, {}, {}
for _, name in ipairs(call('SMEMBERS', P .. 'paused')) do paused[name] = true end
for _, name in ipairs(cmsgpack.unpack(known)[2]) do
  if not paused['type:' .. name] then rooms[name] = rooms_of[name] or 1073741824 end
end
for _, name in ipairs(A[3]) do
  if not paused['queue:' .. name] then
    queues[#queues + 1] = name
    local open = P .. 'os:' .. name .. ':'
    if call('EXISTS', open .. '0', open .. '1', open .. '2', open .. '3') > 0 then return pack('full') end
    local settings = call('HGET', P .. 'queue_settings', name)
    if settings and cmsgpack.unpack(settings)[2] then return pack('full') end
  end
end

local ids, n, blocked, lines = {}, 0, false, {}
local beside = call('EXISTS', P .. 'beside') == 1

-- Up to `most` of a line, from where the last look at it ended.
local function take(queue, p, most)
  local key = P .. 'q:' .. queue .. ':' .. p
  local line = lines[key]
  if not line then
    line = {taken = 0, types = {}, queue = queue, p = p}
    lines[key] = line
  end
  local members = call('ZRANGEBYSCORE', key, '-inf', S.now, 'LIMIT', line.taken, most)
  local keys, types, took = {}, {}, 0
  for i, m in ipairs(members) do
    local kind = string.sub(m, 14, -37)
    local room = rooms[kind] or 0
    if room <= 0 or string.byte(m, 13) ~= 45 then
      blocked = true
      break
    end
    rooms[kind], types[kind], took = room - 1, (types[kind] or 0) + 1, i
    local id = string.sub(m, -36)
    ids[n + i], keys[i] = id, P .. 't:' .. id
  end
  if took == 0 then return 0 end
  local records, size = call('MGET', unpack(keys)), 0
  for i = 1, took do
    size = size + #records[i]
    raws[n + i] = records[i]
  end
  if beside then
    for _, text in ipairs(call('HMGET', P .. 'beside', unpack(ids, n + 1, n + took))) do
      local steps, signals = bytes_in(text)
      size = size + steps + signals
    end
  end
  if size > bytes then
    blocked = true
    return 0
  end
  bytes, n = bytes - size, n + took
  for i = 1, took do line[line.taken + i] = members[i] end
  line.taken = line.taken + took
  for kind, count in pairs(types) do line.types[kind] = (line.types[kind] or 0) + count end
  return took
end

local function pick(queue, want)
  local got = 0
  for p = 3, 0, -1 do
    if got < want and not blocked then got = got + take(queue, p, want - got) end
  end
  return got
end

-- Every queue an equal part first, then what others leave, then a few more so that the worker has the next at hand.
local count = #queues
if count > 1 then
  local part = math.ceil(slots / count)
  for i = 1, count do slots = slots - pick(queues[(request + i - 1) % count + 1], math.min(part, slots)) end
end
for i = 1, count do slots = slots - pick(queues[(request + i - 1) % count + 1], slots) end
if slots <= 0 then
  for i = 1, count do ahead = ahead - pick(queues[(request + i - 1) % count + 1], ahead) end
end
if blocked then return pack('full') end

local first = 0
if n > 0 then
  first = number_after(tonumber(call('GET', P .. 'token') or '0'))
  local tail = '\t' .. int(request) .. '\t' .. int(S.now) .. '\t' .. worker
  local leases, runs, at = {}, {}, int(request) .. '\t'
  for i = 1, n do
    local id, token = ids[i], string.format('%016x', first + i - 1)
    leases[2 * i - 1], leases[2 * i] = id, token .. tail
    runs[2 * i - 1], runs[2 * i] = token, at .. id
  end
  call('HSET', P .. 'leases', unpack(leases))
  call('HSET', P .. 'run:' .. worker, unpack(runs))
  call('SET', P .. 'token', int(first + n - 1))
  call('HSET', P .. 'requests', worker, int(request))
  if S.listening() then
    for i = 1, n do
      local h = array_of(raws[i])
      h.id = ids[i]
      S.tell_task('task.started', h, h[F.version] + 1, {worker = worker, attempt = h[F.executions] + 1})
    end
  end
  for key, line in pairs(lines) do
    if line.taken > 0 then call('ZREM', key, unpack(line)) end
    for kind, taken in pairs(line.types) do
      local field = line.queue .. '\t' .. kind .. '\t' .. line.p .. '\t'
      S.counts[field .. PENDING], S.counts[field .. RUNNING] = -taken, taken
    end
  end
end
local left = slots <= 0
for _, name in ipairs(queues) do
  if left then S.wake(name) else call('DEL', P .. 'wake:' .. name) end
end
S.finish()
local all = {pack({not left and n == 0 and next_at < FAR and next_at, S.now, first, table.concat(ids), tonumber(call('GET', P .. 'generation') or '0')})}
for i = 1, n do all[i + 1] = raws[i] end
return all
