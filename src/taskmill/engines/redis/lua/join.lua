-- A worker registers, with what its code declares.
-- A: {worker, record {queues, types, lease, joined_at, info}, queues, app, version, declared {{kind, name, value}, …}, schedules {name, …}, beat}

for _, d in ipairs(A[6]) do I.declare(d[1], d[2], d[3], A[4], A[5]) end
local declared = {}
for _, name in ipairs(A[7]) do
  declared[name] = true
  local pause = I.read('pause', 'schedule:' .. name, false)
  if pause and pause[4] <= A[5] then I.write('pause', 'schedule:' .. name, false, nil) end
end
-- A schedule that its own app no longer declares is paused as orphaned; declared again, it goes on.
for _, item in ipairs(I.all('schedule')) do
  if not item.operator and item.item[3] == A[4] and item.item[4] <= A[5] and not declared[item.name] then
    I.declare('pause', 'schedule:' .. item.name, '{"reason":"orphaned"}', A[4], A[5])
  end
end
local raw = call('HGET', P .. 'workers', A[1])
local record = A[2]
record[4] = raw and cmsgpack.unpack(raw)[4] or S.now
call('HSET', P .. 'workers', A[1], pack(record))
call('ZADD', P .. 'beats', A[8] > 0 and A[8] or S.now, A[1])
for _, queue in ipairs(A[3]) do
  call('SADD', P .. 'queues', queue)
  S.wake(queue)
end
if SHARD == 0 then S.tell('worker.joined', A[1], 0) end
return done(pack(true))
