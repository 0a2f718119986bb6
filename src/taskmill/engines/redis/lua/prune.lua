-- What ended longer ago than its retention and owes nothing is removed.
-- A: {n, term, {completed, dead, cancelled}, hashes (id -> hash)}   answers false, or {moved, more, wanted}: records whose id stays known for a while want the
-- hash of their payload first ({id, body}); they are asked for once more with it. And forgotten: ids of which nothing is known any more

if not term_stands(A[2]) then return pack(false) end
local n, moved, wanted, hashes, forgotten = A[1], 0, {}, A[4], {}
for state = COMPLETED, CANCELLED do
  local after = 0
  while moved + #wanted < n and after < 1000 do  -- what is not delivered yet may be many
    local found = call('ZRANGEBYSCORE', P .. 'ended:' .. state, '-inf', S.now - A[3][state - 4], 'LIMIT', after, n - moved - #wanted)
    if #found == 0 then break end
    R.load(found)
    for _, id in ipairs(found) do
      local h = R.get(id)
      if M.owes(h) then
        after = after + 1
      elseif M.known_until(h) > S.now and not hashes[id] then
        after = after + 1
        wanted[#wanted + 1] = {id, answer_raw(h.body)}
      else
        M.purge(h, hashes[id])
        if not hashes[id] then forgotten[#forgotten + 1] = id end
        moved = moved + 1
      end
    end
  end
end
if #wanted > 0 then return done(pack({moved, true, wanted, forgotten})) end

-- Entries whose window has passed, and lanes and counters that nothing needs any more.
local left, LATER = n - moved, 60000000
local function forget(key, most, drop)
  for _, name in ipairs(call('ZRANGEBYSCORE', key, '-inf', S.now, 'LIMIT', 0, most)) do
    if drop(name) then moved = moved + 1 end
  end
end
if left > 0 then
  forget(P .. 'forgets', left, function(id)
    call('ZREM', P .. 'forgets', id)
    if call('EXISTS', P .. 'waiters:' .. id, P .. 'watchers:' .. id) > 0 then  -- a reservation that ran out; tasks wait for it still
      M.await(id)
      return true
    end
    call('DEL', P .. 'known:' .. id)
    forgotten[#forgotten + 1] = id
    return true
  end)
  forget(P .. 'takens', left, function(id)
    call('DEL', P .. 'taken:' .. id)
    call('ZREM', P .. 'takens', id)
    return true
  end)
  forget(P .. 'keys', left, function(name)
    local raw = call('GET', P .. 'd:' .. name)
    local d = raw and cmsgpack.unpack(raw)
    local h = d and R.get(d[1])
    local lives = h and h[F.state] < COMPLETED
    if lives or (d and d[3] > S.now) then  -- looked at again later, so that it is in nobody's way
      call('ZADD', P .. 'keys', lives and S.now + LATER or d[3], name)
      return false
    end
    call('DEL', P .. 'd:' .. name)
    call('ZREM', P .. 'keys', name)
    return true
  end)
  forget(P .. 'empty', left, function(number)
    local l = Lane.get(tonumber(number))
    call('ZREM', P .. 'empty', number)
    if l.live > 0 then return false end
    call('HDEL', P .. 'lanes', l.field)
    call('DEL', P .. 'L:' .. number)
    Lane.dirty[l.number], Lane.all[l.number] = nil, nil
    return true
  end)
  forget(P .. 'unused', left, function(name)
    local l = Limit.get(name)
    local last = call('LINDEX', l.key, -1)
    local empty_at = last and entry(last) + l.window or 0
    if l.running > 0 or call('EXISTS', P .. 'sq:' .. name, P .. 'sq:' .. CAP .. name) > 0 or empty_at > S.now then
      call('ZADD', P .. 'unused', math.max(empty_at, S.now + LATER), name)
      return false
    end
    call('DEL', P .. 'c:' .. name, l.key)
    call('ZREM', P .. 'unused', name)
    Limit.all[name] = nil
    return true
  end)
end
return done(pack({moved, moved >= n, {}, forgotten}))
