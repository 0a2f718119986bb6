-- Whole records are inserted as they are, never over an existing one.
-- A: {records, elsewhere (id -> shard)}; a record is {id, record, body, {share, limits, order_key}, {key, hash, until}|false, attempts, checkpoints, signals, edges {{child, on_failure, outcome|false, result|false}}}
-- answers true or false for each

elsewhere = A[2]
local answers = {}
for n, t in ipairs(A[1]) do
  local id, h = t[1], t[2]
  answers[n] = not (R.get(id) or known(id))
  if answers[n] then
    h[F.seq] = call('INCR', P .. 'seq')
    h[F.lane] = Lane.number(h[F.queue], t[4][1], t[4][2], t[4][3], '')
    h[F.home] = h[F.lane] > 0 and t[4] or false
    h.id, h.body = id, given_raw(t[3])
    R.known[id] = h
    R.touch(h)
    call('SADD', P .. 'queues', h[F.queue])
    call('ZADD', P .. 'ids', h[F.seq], id)
    S.count(h, h[F.state], 1)
    local live = h[F.state] < COMPLETED
    if live then
      if h[F.lane] > 0 then Lane.live(h[F.lane], 1) end
      if band(h[F.flags], ORDERED) ~= 0 then call('ZADD', P .. 'order:' .. h[F.lane], h[F.seq], id) end
      if h[F.expires_at] then call('ZADD', P .. 'expiry', h[F.expires_at], id) end
      if h[F.unique] then call('SET', M.unique_key(h), id) end
      M.enter(h)
      S.wake(h[F.queue])
    else
      call('ZADD', P .. 'ended:' .. h[F.state], h[F.finished_at] or S.now, id)
      S.owe('archive', id, {id = id, type = h[F.type], queue = h[F.queue], state = STATES[h[F.state]], version = h[F.version]})
    end
    if t[5] then
      call('SET', P .. 'd:' .. h[F.tenant] .. '\t' .. h[F.type] .. '\t' .. t[5][1], pack({id, t[5][2], t[5][3]}))
      call('ZADD', P .. 'keys', t[5][3], h[F.tenant] .. '\t' .. h[F.type] .. '\t' .. t[5][1])
    end
    for _, a in ipairs(t[6]) do call('RPUSH', P .. 'attempts:' .. id, pack(a)) end
    for name, value in pairs(t[7]) do call('HSET', P .. 'checkpoints:' .. id, name, value) end
    for _, s in ipairs(t[8]) do
      call('RPUSH', P .. 'signals:' .. id, pack(s))
      call('HSET', P .. 'signal_ids:' .. id, s[4], s[1])
    end
  end
end
for n, t in ipairs(A[1]) do
  if answers[n] then
    for _, e in ipairs(t[9]) do
      local number = call('INCR', P .. 'edge')
      M.set_edge(t[1], e[1], {number, e[2], e[3], e[4], e[3] ~= false})
      call('ZADD', P .. 'edge_order:' .. t[1], number, e[1])
      call('ZADD', P .. 'waiters:' .. e[1], number, t[1])
      if elsewhere[e[1]] and not e[3] then S.post(elsewhere[e[1]], 'watch', {e[1]}) end
      local c = R.get(e[1])
      if c then
        c[F.flags] = bor(c[F.flags], WAITED)
        R.touch(c)
      end
    end
  end
end
M.settle()
return done(pack(answers))
