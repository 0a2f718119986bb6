-- What becomes of records after their end, and of leases whose holder is gone. Used by admin, recover, prune and leave.

function M.request_cancel(h)
  h[F.flags] = bor(h[F.flags], CANCEL)
  h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
  R.touch(h)
  call('SADD', P .. 'stop:' .. h[F.worker], h.id)
  S.tell_task('task.cancelling', h, h[F.version])
end

-- An ended task is ready again, with failures and crashes 0, its attempt numbers going on.
function M.open_again(h)
  local home = h[F.home]
  h[F.lane] = home and Lane.number(h[F.queue], home[1], home[2], home[3], '') or 0
  S.count(h, h[F.state], -1)
  h[F.opened] = h[F.version]
  h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
  h[F.failures], h[F.crashes], h[F.finished_at], h[F.result], h[F.error] = 0, 0, false, false, false
  h[F.token], h[F.worker], h[F.claimed_at], h[F.started_at] = false, false, false, false
  h[F.flags] = band(h[F.flags], bnot(SUSPECT + REJECTED))
  h[F.state], h[F.ready_at] = PENDING, S.now
  if h[F.open_edges] > 0 then h[F.state], h[F.ready_at] = WAITING, FAR end
  S.count(h, h[F.state], 1)
  if h[F.expires_at] then call('ZADD', P .. 'expiry', h[F.expires_at], h.id) end
  if h[F.lane] > 0 then Lane.live(h[F.lane], 1) end
  if band(h[F.flags], ORDERED) ~= 0 then call('ZADD', P .. 'order:' .. h[F.lane], h[F.seq], h.id) end
  R.touch(h)
  M.enter(h)
  S.wake(h[F.queue])
  S.tell_task('task.ready', h, h[F.version])
end

-- Its id stays known for its window; that of one which never was taken is forgotten at once.
function M.known_until(h)
  if band(h[F.flags], REJECTED) ~= 0 then return 0 end
  return h[F.created_at] + (h[F.window] or 259200000000)
end

-- Something about it is not delivered yet, or its edges have not all fallen.
function M.owes(h) return call('HEXISTS', P .. 'owing', h.id) == 1 or call('HEXISTS', P .. 'fallen', h.id) == 1 end

-- What waited for it keeps its result, whatever becomes of the record.
function M.keep_results(h)
  for _, waiter in ipairs(call('ZRANGE', P .. 'waiters:' .. h.id, 0, -1)) do
    local edge, w = M.edge(waiter, h.id), R.get(waiter)
    if edge and edge[3] and not edge[5] and w and w[F.state] < COMPLETED then
      edge[4], edge[5] = h[F.result], true
      M.set_edge(waiter, h.id, edge)
    end
  end
end

local function await_no_more(id)
  local raw = call('GET', P .. 'known:' .. id)
  if raw and cmsgpack.unpack(raw)[6] then call('DEL', P .. 'known:' .. id) end
end

-- Remove a record.
function M.purge(h, hash)
  M.keep_results(h)
  local till = M.known_until(h)
  if hash and till > S.now then
    call('SET', P .. 'known:' .. h.id, pack({h[F.state], h[F.version], hash, till}))
    call('ZADD', P .. 'forgets', till, h.id)
  end
  for _, child in ipairs(call('ZRANGE', P .. 'edge_order:' .. h.id, 0, -1)) do
    call('ZREM', P .. 'waiters:' .. child, h.id)
    if not R.get(child) and call('EXISTS', P .. 'waiters:' .. child, P .. 'watchers:' .. child) == 0 then await_no_more(child) end
  end
  local keys = {}
  for _, name in ipairs({'edges:', 'edge_order:', 'attempts:', 'checkpoints:', 'signals:', 'signal_ids:', 'waiters:', 'watchers:'}) do keys[#keys + 1] = P .. name .. h.id end
  call('UNLINK', unpack(keys))
  call('HDEL', P .. 'beside', h.id)
  call('ZREM', P .. 'ended:' .. h[F.state], h.id)
  call('ZREM', P .. 'ids', h.id)
  S.count(h, h[F.state], -1)
  R.drop(h)
end

-- Leases of requests up to this one that the worker does not name never reached it: as if they had never been given.
function M.give_back(worker, request, named)
  local given = 0
  for _, lease in ipairs(leases_of(worker)) do
    if lease[2] <= request and not named[lease[1]] then
      local h = R.get(lease[3])
      if band(h[F.flags], CANCEL) ~= 0 then M.cancel(h) else M.ready(h, h[F.ready_at], {executions = h[F.executions] - 1}) end
      given = given + 1
    end
  end
  return given
end
