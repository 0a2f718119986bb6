-- A signal: kept in order until the task ends; one that waits for it becomes ready.
-- A: {task, name, data, id}   answers {number} or {false, code, state}

local h = R.get(A[1])
if not h then return pack({false, known(A[1]) and 'expired' or 'not_found'}) end
local sent = tonumber(call('HGET', P .. 'signal_ids:' .. h.id, A[4]))
if sent then return pack({sent}) end
if h[F.state] >= COMPLETED then return pack({false, 'terminal', h[F.state]}) end
local last = call('LINDEX', P .. 'signals:' .. h.id, -1)
local number = last and cmsgpack.unpack(last)[1] + 1 or 1
call('RPUSH', P .. 'signals:' .. h.id, pack({number, A[2], A[3], A[4], S.now}))
call('HSET', P .. 'signal_ids:' .. h.id, A[4], number)
local awaited = false
if band(h[F.flags], AWAITS) ~= 0 and h[F.state] == WAITING then
  local awaits = cjson.decode(h[F.awaits])
  for _, name in ipairs(awaits[2]) do awaited = awaited or (name == A[2] and number > awaits[1]) end
end
h[F.flags] = bor(h[F.flags], SIGNALS)
if awaited then h[F.flags] = band(h[F.flags], bnot(AWAITS)) end
h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
R.touch(h)
S.tell_task('task.signalled', h, h[F.version], {name = A[2], number = number})
if awaited and h[F.open_edges] == 0 then M.ready(h, S.now, {keep = true}) end
M.settle()
return done(pack({number}))
