-- Claim: see pick.lua.
-- A: {worker, request, queues, slots, prefetch, bytes, rooms (map, for types that are bounded), bytes before other shards took some}
-- answers {how, next_at|false, more, tasks, generation}: how is `claimed`, `repeated` or `unknown_worker`; a task is {id, record, limits}

local worker, request = A[1], A[2]
local raw = call('HGET', P .. 'workers', worker)
if not raw then return pack({'unknown_worker', false, false, {}, 0}) end

local function answer(how, next_at, more, tasks)
  local found = {}
  for n, h in ipairs(tasks) do
    R.packed[h.id] = R.raw(h)
    local limits = {}
    for i, name in ipairs(h[F.lane] > 0 and Lane.get(h[F.lane]).limits or {}) do limits[i] = Limit.whole(name) end
    found[n] = {h.id, answer_raw(R.packed[h.id]), limits}
  end
  return pack({how, next_at or false, more, found, tonumber(call('GET', P .. 'generation') or '0')})
end

if request <= tonumber(call('HGET', P .. 'requests', worker) or '0') then  -- asked again: what it still holds of that request; never anything new
  local tasks = {}
  for _, lease in ipairs(leases_of(worker)) do
    if lease[2] == request then tasks[#tasks + 1] = R.get(lease[3]) end
  end
  return answered(answer('repeated', false, true, tasks))
end

local paused = {}
for _, name in ipairs(call('SMEMBERS', P .. 'paused')) do paused[name] = true end
local rooms, queues = {}, {}
for _, name in ipairs(cmsgpack.unpack(raw)[2]) do
  if not paused['type:' .. name] then rooms[name] = A[7][name] or 1073741824 end
end
for _, name in ipairs(A[3]) do
  if not paused['queue:' .. name] then queues[#queues + 1] = name end
end

local more = M.open_due()
if M.settle() then more = true end
C.begin(worker, request, A[4], A[5], A[6], A[8], rooms)
C.pick(queues)
if M.settle() then more = true end
C.write()
more = more or C.more

-- When something may become claimable that is not now.
local function next_at()
  local best
  local function look(found)
    local at = tonumber(found[2])
    if at and at < FAR and (not best or at < best) then best = at end
  end
  look(call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES'))
  look(call('ZRANGE', P .. 'wakes', 0, 0, 'WITHSCORES'))
  return best
end

local left = more or C.slots <= 0
for _, name in ipairs(queues) do
  if left then S.wake(name) else call('DEL', P .. 'wake:' .. name) end  -- others may find what this one left; else whoever comes next pushes it again
end
return done(answer('claimed', not left and #C.taken == 0 and next_at(), more, C.taken))
