-- A signal: kept in order until the task ends; one that waits for it becomes ready.
-- A: {task, name, data, id, most signals, most bytes}   answers {number} or {false, code, state}

local h = R.get(A[1])
if not h then return pack({false, known(A[1]) and 'expired' or 'not_found'}) end
local sent = tonumber(call('HGET', P .. 'signal_ids:' .. h.id, A[4]))
if sent then return pack({sent}) end
if h[F.state] >= COMPLETED then return pack({false, 'terminal', h[F.state]}) end
local steps, bytes = bytes_in(call('HGET', P .. 'beside', h.id))
bytes = bytes + #A[2] + #A[3]
if call('LLEN', P .. 'signals:' .. h.id) >= A[5] then return pack({false, 'too_many_signals'}) end
if bytes > A[6] then return pack({false, 'signals_too_large'}) end
M.set_beside(h, steps, bytes)
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
