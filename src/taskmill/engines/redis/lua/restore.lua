-- Whole records are inserted as they are, never over an existing one, and in any order: an edge onto a task that is not there stays open until it comes.
-- A: {records, elsewhere (id -> shard)}; a record is {id, record, body, {share, limits, order_key}, {key, hash, until}|false, attempts, checkpoints, signals, edges {{child, on_failure, outcome|false, result|false}}}
-- answers {whether edges are left to fall, {true or false for each}}

elsewhere = A[2]

-- Into lines and lanes, if it lives; to the ended, if it does not.
local function place(h, home)
  h[F.lane] = Lane.number(h[F.queue], home[1], home[2], home[3], '')
  h[F.home] = h[F.lane] > 0 and home or false
  S.count(h, h[F.state], 1)
  call('SADD', P .. 'queues', h[F.queue])
  call('ZADD', P .. 'ids', h[F.seq], h.id)
  if h[F.state] >= COMPLETED then
    call('ZADD', P .. 'ended:' .. h[F.state], h[F.finished_at] or S.now, h.id)
    S.owe('archive', h.id, {id = h.id, type = h[F.type], queue = h[F.queue], state = STATES[h[F.state]], version = h[F.version]})
    S.ended = true
    return
  end
  if h[F.lane] > 0 then Lane.live(h[F.lane], 1) end
  if band(h[F.flags], ORDERED) ~= 0 then call('ZADD', P .. 'order:' .. h[F.lane], h[F.seq], h.id) end
  if h[F.expires_at] then call('ZADD', P .. 'expiry', h[F.expires_at], h.id) end
  if h[F.unique] then call('SET', M.unique_key(h), h.id, 'NX') end
  M.enter(h)
  S.wake(h[F.queue])
end

-- What it has beside its record.
local function add_rest(h, key, attempts, steps, signals)
  if key then
    local name = h[F.tenant] .. '\t' .. h[F.type] .. '\t' .. key[1]
    call('SET', P .. 'd:' .. name, pack({h.id, key[2], key[3]}))
    call('ZADD', P .. 'keys', key[3], name)
  end
  local of_steps, of_signals = 0, 0
  for _, a in ipairs(attempts) do call('RPUSH', P .. 'attempts:' .. h.id, given_raw(a)) end
  for name, value in pairs(steps) do
    call('HSET', P .. 'checkpoints:' .. h.id, name, value)
    of_steps = of_steps + #name + #value
  end
  for _, s in ipairs(signals) do
    call('RPUSH', P .. 'signals:' .. h.id, pack(s))
    call('HSET', P .. 'signal_ids:' .. h.id, s[4], s[1])
    of_signals = of_signals + #s[2] + #s[3]
  end
  M.set_beside(h, of_steps, of_signals)
end

-- An edge as it was. If it is open, it falls when the other has ended, be that now or when it has come.
local function link(id, e)
  local child, number = e[1], call('INCR', P .. 'edge')
  M.set_edge(id, child, {number, e[2], e[3], e[4], e[3] ~= false})
  call('ZADD', P .. 'edge_order:' .. id, number, child)
  call('ZADD', P .. 'waiters:' .. child, number, id)
  local c = R.get(child)
  if c then
    c[F.flags] = bor(c[F.flags], WAITED)
    R.touch(c)
  end
  if e[3] then return end
  local state, exists = state_of(child)
  if elsewhere[child] then
    S.post(elsewhere[child], 'watch', {child, true, SHARD})
  elseif not exists then
    M.await(child)
  elseif state and state >= COMPLETED then
    M.fallen[#M.fallen + 1] = {child, state}
  end
end

local answers = {}
for n, t in ipairs(A[1]) do
  local id, h = t[1], t[2]
  answers[n] = not (R.get(id) or known(id))
  if answers[n] then
    h[F.seq] = call('INCR', P .. 'seq')
    h.id, h.body = id, given_raw(t[3])
    h[F.flags] = bor(h[F.flags], awaited(id))
    call('DEL', P .. 'known:' .. id)
    R.known[id] = h
    R.touch(h)
    place(h, t[4])
    add_rest(h, t[5], t[6], t[7], t[8])
    if h[F.state] >= COMPLETED then
      if band(h[F.flags], WAITED) ~= 0 then M.fallen[#M.fallen + 1] = {id, h[F.state]} end
      if band(h[F.flags], WATCHED) ~= 0 then M.tell_watchers(h) end
    end
  end
end
for n, t in ipairs(A[1]) do
  if answers[n] then
    for _, e in ipairs(t[9]) do link(t[1], e) end
  end
end
return done(pack({M.settle(), answers}))
