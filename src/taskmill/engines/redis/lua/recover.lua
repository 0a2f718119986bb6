-- Up to n leases of workers that are silent for longer than their lease are lost; then a slice of what only time, or a clock that was set back, has decided.
-- Nobody is judged by a time in which the store, or recovery itself, did not look: after half a lease of that every lease is first given one lease more.
-- A: {n, lease, mono}   answers {moved, more, lost, moving, whether this is a store at all}

local n, lease = A[1], A[2]
local mono = A[3] > 0 and A[3] or S.now
local raw = call('GET', P .. 'mark')
local mark = raw and cmsgpack.unpack(raw) or {0, 0, 0, 0}  -- at, fair_since, newest_at, settled
local gap = mono - mark[1]
local fair = (gap > lease / 2 or gap < -lease) and mono or mark[2]
if gap < -lease then
  for _, worker in ipairs(call('ZRANGEBYSCORE', P .. 'beats', '(' .. int(mono), '+inf')) do call('ZADD', P .. 'beats', mono, worker) end
end
local moved, lost = 0, {}
local beats = call('ZRANGE', P .. 'beats', 0, -1, 'WITHSCORES')
local silent = {}
for i = 1, #beats, 2 do
  local found = call('HGET', P .. 'workers', beats[i])
  local w = found and cmsgpack.unpack(found)
  if w and mono - math.max(tonumber(beats[i + 1]), fair) > w[3] then silent[#silent + 1] = {beats[i], w[4]} end
end
table.sort(silent, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
for _, pair in ipairs(silent) do
  local worker = pair[1]
  local leases = leases_of(worker, n - moved)
  for _, lease in ipairs(leases) do
    local h = R.get(lease[3])
    if h[F.started_at] then M.begun(h) end
    M.attempt(h, 'crashed', nil, {code = 'lease_lost', message = 'worker ' .. worker .. ' was not heard of any more'})
    M.crash(h, nil, false)
  end
  moved = moved + #leases
  if moved >= n then break end
  call('HDEL', P .. 'workers', worker)
  call('HDEL', P .. 'requests', worker)
  call('HDEL', P .. 'served', worker)
  call('ZREM', P .. 'beats', worker)
  call('UNLINK', P .. 'run:' .. worker, P .. 'stop:' .. worker)
  if SHARD == 0 then S.tell('worker.lost', worker, 0) end
  lost[#lost + 1] = worker
end
local more = M.settle()

-- Tasks whose time is over before they run. One that runs is looked at again later; one that must end already is left to its handler.
local expired = call('ZRANGEBYSCORE', P .. 'expiry', '-inf', S.now, 'LIMIT', 0, n)
for _, id in ipairs(expired) do
  call('ZREM', P .. 'expiry', id)
  local h = R.get(id)
  if h and h[F.state] < COMPLETED and not h[F.must_end] then
    if h[F.state] == RUNNING then
      call('ZADD', P .. 'expiry', S.now + 1000000, id)
    else
      M.cancel(h, {code = 'expired', message = 'its deadline (expires) has passed'}, 'expired')
    end
  end
end
if M.settle() then more = true end
if M.open_due() then more = true end
if M.settle() then more = true end

-- What was pending before the clock was set back stays due, and in its order.
local function pull_pending(back)
  local pulled = false
  local ahead = S.now + back + 60000000
  for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
    for p = 0, 3 do
      local key = P .. 'q:' .. queue .. ':' .. p
      for _, m in ipairs(call('ZRANGEBYSCORE', key, '(' .. int(S.now), int(ahead), 'LIMIT', 0, n)) do
        local h = R.get(id_in(m))
        if h and h[F.state] == PENDING then
          h[F.ready_at] = math.min(h[F.ready_at] - back, S.now)
          R.touch(h)
          call('ZADD', key, h[F.ready_at], m)
          S.wake(queue)
          pulled = true
        end
      end
    end
  end
  return pulled
end

-- A rate that was to open at a time of the clock before: its log goes with the clock (Limit.look), and so does the time. Whether there are more.
local function pull_wakes()
  local pulled = 0
  local found = call('ZREVRANGEBYSCORE', P .. 'wakes', '+inf', '(' .. int(S.now), 'WITHSCORES', 'LIMIT', 0, n)
  for i = 1, #found, 2 do
    local window = definition_of(found[i])[2]
    if tonumber(found[i + 1]) > S.now + window + math.max(1000, window / 1000) then
      call('ZREM', P .. 'wakes', found[i])
      Lane.wake(Limit.get(found[i]))
      pulled = pulled + 1
    end
  end
  return pulled >= n
end

local last = call('ZREVRANGE', P .. 'ids', 0, 0)[1]
local h = last and R.get(last)
local newest = h and h[F.created_at] or 0
local back = math.max(mark[3], newest == mark[4] and 0 or newest) - S.now
local settled, seen = mark[4], S.now
if back > 0 then
  local wakes = pull_wakes()
  if pull_pending(back) or wakes then
    more, seen = true, mark[3]
  else
    settled = newest
  end
end
call('SET', P .. 'mark', pack({mono, fair, seen, settled}))
return done(pack({moved + #expired, more or moved >= n or #expired >= n, lost, call('EXISTS', P .. 'moving') == 1, call('EXISTS', P .. 'store') == 1}))
