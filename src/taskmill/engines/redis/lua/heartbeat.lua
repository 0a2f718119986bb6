-- One write: the worker lives, and holds exactly these leases of its requests up to this one.
-- A: {worker, request, tokens, beat, whether to tell tasks}   answers {known, lost, cancelled, command|false, shards it is served by|false, {token, id …}}

local worker = A[1]
if call('HEXISTS', P .. 'workers', worker) == 0 then return pack({false}) end
call('ZADD', P .. 'beats', A[4] > 0 and A[4] or S.now, worker)
local named, held, unnamed = {}, {}, false
for _, token in ipairs(A[3]) do named[token] = true end
for _, lease in ipairs(leases_of(worker)) do
  held[lease[1]] = lease[3]
  unnamed = unnamed or (not named[lease[1]] and lease[2] <= A[2])
end
local lost, cancelled = {}, {}
for _, token in ipairs(A[3]) do
  if not held[token] then lost[#lost + 1] = token end
end
local stops = call('SMEMBERS', P .. 'stop:' .. worker)
if #stops > 0 then
  local by_id = {}
  for token, id in pairs(held) do by_id[id] = named[token] end
  for _, id in ipairs(stops) do
    if by_id[id] then cancelled[#cancelled + 1] = id end
  end
end
if unnamed then
  M.give_back(worker, A[2], named)
  M.settle()
end
local told = {}
if A[5] then
  for _, token in ipairs(A[3]) do
    if held[token] then told[#told + 1], told[#told + 2] = token, held[token] end
  end
end
local command = I.value('worker', worker)
return done(pack({true, lost, cancelled, command or false, call('HGET', P .. 'served', worker), told}))
