-- Into the store: every task of a batch once, or told why not. Used by submit, finish (tasks that follow) and fire.
--
-- A batch is {lines, tasks}. A line has what tasks have in common: type, queue, tenant, priority, share, limits, order_key, rejects, max_crashes, span. A task
-- is id, line, body (see step.lua), size, and a map of what few have: run_at, delay, expires_at, key, hash, window, unique {key, flag, replaces}, edges {{task, on_failure}},
-- parent {task, on_failure}, sealed.
-- An answer is {status, id, code, message}: created; duplicate, replaced, conflict (with code `compare` the caller judges by the body, or the hash, that
-- `message` holds); rejected, with the time at which its rates have room again; refused. B.judge writes nothing, so that whoever finds a refusal in it can still leave everything as it was.

local B = {}

-- What is left of a task, or reserved for one: state (false: reserved), version, hash, until, elsewhere (it was given to another shard), awaited (tasks wait for
-- it that came before it).
local function remembered(raw)
  local k = raw and cmsgpack.unpack(raw)
  return k and k[4] > S.now and k or nil
end

local function known(id)
  local k = remembered(call('GET', P .. 'known:' .. id))
  return k and not k[5] and not k[6] and k or nil
end

-- The final state of a task that others wait for, nil while it lives; and whether there is such a task at all.
local function state_of(id)
  if elsewhere[id] then return nil, true end
  local h = R.get(id)
  if h then return h[F.state], true end
  local k = known(id)
  if k then return k[1] or nil, true end
  return nil, false
end

function B.open(batch)
  local b = {lines = batch[1], tasks = batch[2], answers = {}, first = {}, place = {}, alive = {}, known = {}, traces = {}, children = {}, linked = false}
  for n, t in ipairs(b.tasks) do
    t.line, t.body, t.more = b.lines[t[2]], given_raw(t[3]), t[5] or {}
    b.linked = b.linked or t.more.edges ~= nil or t.more.parent ~= nil
    if b.place[t[1]] then
      b.answers[n] = {'duplicate', t[1], 'repeats', b.place[t[1]]}
    else
      b.place[t[1]] = n
      b.alive[n] = true
      if t.more.parent then
        local of = b.children[t.more.parent[1]] or {}
        b.children[t.more.parent[1]], of[#of + 1] = of, t[1]
      end
    end
  end
  return b
end

-- Whether tasks wait already for one that comes only now, here or in other shards: as flags.
local function awaited(id)
  return call('EXISTS', P .. 'waiters:' .. id) * WAITED + call('EXISTS', P .. 'watchers:' .. id) * WATCHED
end

-- When every full rate of these limits has room again; false where none is full.
local function room_at(names)
  local at = false
  for _, name in ipairs(names) do
    local l = Limit.get(name)
    Limit.save(l)
    if Limit.full_rate(l) then at = math.max(at or 0, Limit.next_room_at(l) or 0) end
  end
  return at
end

-- Who is there already, by id?
local function judge_ids(b)
  local ids, keys = {}, {}
  for n, t in ipairs(b.tasks) do
    if b.alive[n] then ids[#ids + 1], keys[#keys + 1] = t[1], P .. 'known:' .. t[1] end
  end
  R.load(ids)
  for first = 1, #keys, 1000 do
    for i, raw in ipairs(call('MGET', unpack(keys, first, math.min(first + 999, #keys)))) do
      if raw then b.known[ids[first + i - 1]], b.traces[ids[first + i - 1]] = remembered(raw), true end
    end
  end
  for n, t in ipairs(b.tasks) do
    if b.alive[n] then
      local h, k = R.get(t[1]), b.known[t[1]]
      local reserved = k and not k[1] and not k[6]
      if h then
        local status = band(h[F.flags], REJECTED) ~= 0 and 'rejected' or 'duplicate'
        b.answers[n], b.alive[n] = {status, t[1], 'compare', answer_raw(h.body), status == 'rejected' and {room_at(t.line.limits), S.now}}, nil
      elseif k and k[5] then
        b.answers[n], b.alive[n] = {'elsewhere', t[1]}, nil
      elseif reserved and not t.more.hash then
        b.unhashed = true
      elseif k and (k[1] or (reserved and k[3] ~= t.more.hash)) then
        b.answers[n], b.alive[n] = {'duplicate', t[1], 'compare', 'hash:' .. k[3]}, nil
      end
    end
  end
end

-- The id under which a task of this batch exists, or will.
local function first(b, id) return b.first[id] or id end

local function edge_error(b, t)
  for _, edge in ipairs(t.more.edges or {}) do
    if not (b.place[edge[1]] and b.alive[b.place[edge[1]]]) then
      local _, exists = state_of(first(b, edge[1]))
      if not exists then return {'refused', t[1], 'unknown_edge', edge[1]} end
    end
  end
  local parent = t.more.parent
  if parent and not (b.place[parent[1]] and b.alive[b.place[parent[1]]]) then
    local h = R.get(first(b, parent[1]))
    if not h then return {'refused', t[1], 'unknown_edge', parent[1]} end
    if h[F.state] ~= WAITING or band(h[F.flags], SEALED) == 0 then return {'refused', t[1], 'no_seal', parent[1]} end
  end
end

local WALK = 1000  -- edges that are followed to find a circle

-- What a task waits for by now, or will with this batch.
local function open_edges(b, id, most)
  local found, n = {}, b.place[id]
  for _, edge in ipairs(n and b.alive[n] and b.tasks[n].more.edges or {}) do found[#found + 1] = edge[1] end
  for _, child in ipairs(b.children[id] or {}) do found[#found + 1] = child end
  local h = R.get(id)
  if h and h[F.state] == WAITING and band(h[F.flags], EDGES) ~= 0 then
    for _, child in ipairs(call('ZRANGE', P .. 'edge_order:' .. id, 0, most)) do
      if not M.edge(id, child)[3] then found[#found + 1] = child end
    end
  end
  return found
end

-- Whether one of these waits, over at most so many edges, for `goal`. What was seen before waits for it in no way.
function B.reaches(b, line, goal, seen)
  local at, left = 1, WALK
  while at <= #line and left > 0 do
    local id = first(b, line[at])
    at = at + 1
    if id == goal then return true end
    if not seen[id] then
      seen[id] = true
      for _, child in ipairs(open_edges(b, id, left)) do line[#line + 1], left = child, left - 1 end
    end
  end
  return false
end

-- Circles inside a batch are known to the caller. Another one comes back to the batch by a task that is waited for already: a child of one that is there, or one that
-- tasks wait for which came before it.
local function closes_circle(b, t, walks)
  local parent = t.more.parent
  if not t.more.edges or not (b.traces[t[1]] or (parent and not b.place[parent[1]])) then return false end
  local goal = parent and first(b, parent[1]) or t[1]
  walks[goal] = walks[goal] or {}
  local line = {}
  for i, edge in ipairs(t.more.edges) do line[i] = edge[1] end
  return B.reaches(b, line, goal, walks[goal])
end

-- A task that waits for one that does not exist, or for one that waits for it, is refused, and so is what waits for it.
local function judge_edges(b)
  local refused = b.linked
  while refused do
    refused = false
    local walks = {}
    for n, t in ipairs(b.tasks) do
      local wrong = b.alive[n] and (edge_error(b, t) or closes_circle(b, t, walks) and {'refused', t[1], 'cycle', t[1]})
      if wrong then
        b.answers[n], b.alive[n], refused = wrong, nil, true
      end
    end
  end
end

function B.judge(b)
  judge_ids(b)
  judge_edges(b)
end

-- Whether every task is, or can be, in the store.
function B.refused(b)
  for n in ipairs(b.tasks) do
    if b.answers[n] and b.answers[n][1] == 'refused' then return b.answers[n] end
  end
end

local function drop(b, n, answer)
  b.answers[n], b.alive[n] = answer, nil
  if answer[1] ~= 'conflict' and answer[1] ~= 'refused' then b.first[b.tasks[n][1]] = answer[2] end
end

-- By idempotency key
local function dedupe_key(t) return P .. 'd:' .. t.line.tenant .. '\t' .. t.line.type .. '\t' .. t.more.key end

local function has_key(b, n, t)
  local key = dedupe_key(t)
  local raw = call('GET', key)
  if raw then
    local d = cmsgpack.unpack(raw)  -- id, hash, until
    local h = d[1] ~= t[1] and R.get(d[1])
    local lives = (h and h[F.state] < COMPLETED) or b.alive[b.place[d[1]] or 0]
    if d[1] ~= t[1] and (d[3] > S.now or lives) then
      local k = not h and known(d[1])
      local reserved = k and not k[1] or false
      drop(b, n, d[2] == t.more.hash and {'duplicate', d[1], false, false, reserved} or {'conflict', d[1], 'conflict', false})
      return true
    end
  end
  local till = S.now + t.line.span
  call('SET', key, pack({t[1], t.more.hash, till}))
  call('ZADD', P .. 'keys', till, t.line.tenant .. '\t' .. t.line.type .. '\t' .. t.more.key)
end

local function times(t)
  local at = t.more.delay and S.now + t.more.delay or t.more.run_at or S.now
  if at > S.now then return SCHEDULED, at, at end
  return PENDING, S.now, at
end

-- The holder of a unique key takes the new one's body, priority and time; it keeps its id, its line and its edges.
local function replace(h, t)
  M.leave(h)
  S.count(h, h[F.state], -1)
  local state, ready_at, run_at = times(t)
  if h[F.state] ~= WAITING then h[F.state], h[F.ready_at] = state, ready_at end
  h[F.priority], h[F.run_at], h[F.size], h.body = t.line.priority, run_at, t[4], t.body
  h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
  S.count(h, h[F.state], 1)
  R.touch(h)
  M.enter(h)
  S.tell_task('task.replaced', h, h[F.version])
end

-- By unique key. Its holder may be an earlier one of this batch, that is stored with what this one brings.
local function has_unique(b, n, t, holders)
  local unique = t.more.unique
  local name = t.line.tenant .. '\t' .. t.line.type .. '\t' .. unique[1]
  if holders[name] then
    local e = b.tasks[holders[name]]
    if unique[3] then
      e[2], e[4], e.line, e.body, e.more = t[2], t[4], t.line, t.body, t.more
    end
    drop(b, n, {unique[3] and 'replaced' or 'duplicate', e[1]})
    return true
  end
  local holder = call('GET', P .. 'u:' .. name)
  if not holder then
    holders[name] = n
    call('SET', P .. 'u:' .. name, t[1])
    return
  end
  local h = R.get(holder)
  if not unique[3] then
    drop(b, n, {'duplicate', holder})
  elseif h[F.state] == RUNNING then
    drop(b, n, {'conflict', holder, 'unique_runs'})
  else
    replace(h, t)
    drop(b, n, {'replaced', holder})
  end
  return true
end

-- What a task held that is not taken after all.
local function forget_keys(t, holders)
  if t.more.key then
    local raw = call('GET', dedupe_key(t))
    if raw and cmsgpack.unpack(raw)[1] == t[1] then call('DEL', dedupe_key(t)) end
  end
  if t.more.unique then
    local name = t.line.tenant .. '\t' .. t.line.type .. '\t' .. t.more.unique[1]
    if call('GET', P .. 'u:' .. name) == t[1] then call('DEL', P .. 'u:' .. name) end
    holders[name] = nil
  end
end

-- Counted against its rates now and never again; or rejected, because one of them or a cap is full.
local function count_or_reject(t, holders)
  for _, name in ipairs(t.line.limits) do
    if Limit.room(Limit.get(name)) <= 0 then
      t.rejected = true
      return forget_keys(t, holders)
    end
  end
  for _, name in ipairs(t.line.limits) do Limit.count(Limit.get(name), 1) end
  t.counted = true
end

-- Refused after it was counted.
local function give_up(t, holders)
  forget_keys(t, holders)
  if t.counted then
    for _, name in ipairs(t.line.limits) do Limit.count(Limit.get(name), -1) end
  end
end

-- Those of a line's limits under which its tasks wait: where the rates were counted at submit, the caps alone.
local function waits_under(line)
  if not line.rejects then return line.limits end
  local caps = {}
  for _, name in ipairs(line.limits) do
    if Limit.get(name).cap then caps[#caps + 1] = CAP .. name end
  end
  return caps
end

local RATE = {code = 'rate_limited', message = 'over its limit when it was submitted'}

local function record(b, n, t, seq)
  local line, more = t.line, t.more
  local state, ready_at, run_at = times(t)
  local flags, limits = t.rejected and REJECTED or 0, waits_under(line)
  if b.traces[t[1]] then flags = flags + awaited(t[1]) end
  local home = (line.share ~= '' or #limits > 0 or line.order_key ~= '') and {line.share, limits, line.order_key}
  local lane = home and not t.rejected and Lane.number(line.queue, line.share, limits, line.order_key, '') or 0
  if line.order_key ~= '' then flags = flags + ORDERED end
  if more.unique then flags = flags + more.unique[2] end
  if more.sealed and not t.rejected then flags, state, ready_at = flags + SEALED, WAITING, FAR end
  local h = {
    seq, line.type, line.queue, line.tenant, line.priority, lane, state, ready_at, 1, 0, 0, 0, flags, 0, S.now, S.now, more.expires_at or false, false,
    false, false, false, false, false, false, false, false, false, false, run_at, line.max_crashes, more.unique and more.unique[1] or false,
    more.window or false, false, false, t[4], home,
  }
  h.id, h.body = t[1], t.body
  R.known[t[1]] = h
  R.touch(h)
  if t.rejected then h[F.state] = DEAD end
  return h
end

local function reject(h)
  h[F.finished_at], h[F.error] = S.now, cjson.encode(RATE)
  if band(h[F.flags], WAITED) ~= 0 then M.fallen[#M.fallen + 1] = {h.id, DEAD} end
  if band(h[F.flags], WATCHED) ~= 0 then M.tell_watchers(h) end
  call('ZADD', P .. 'ended:' .. DEAD, S.now, h.id)
  S.ended = true
  local owed = {id = h.id, type = h[F.type], queue = h[F.queue], state = 'dead', version = 1}
  S.owe('ended', h.id, owed)
  S.owe('archive', h.id, owed)
  S.owe('dead', h.id, owed)
end

-- A task whose edges were just made: it waits while one is open, is cancelled when one has failed, and is ready otherwise.
local function settle_waiter(h, failed)
  if h[F.state] >= RUNNING and h[F.state] ~= WAITING then return end
  if failed or h[F.open_edges] > 0 or band(h[F.flags], SEALED) ~= 0 then
    if h[F.state] ~= WAITING then
      M.leave(h)
      S.count(h, h[F.state], -1)
      S.count(h, WAITING, 1)
      h[F.state], h[F.ready_at] = WAITING, FAR
    end
    if failed then M.cancel(h, {code = 'edge_failed', message = 'a task it waits for did not complete'}, 'edge_failed') end
  end
end

-- Edges, once all records are there: those of ended tasks fall at once.
local function link(b)
  local waiters, failed = {}, {}
  local function add(h, child, on_failure)
    local state = state_of(child)
    local fallen = M.add_edge(h, child, state, on_failure)
    waiters[h.id] = h
    if fallen and state ~= COMPLETED and on_failure == CANCELS then failed[h.id] = true end
  end
  for n, t in ipairs(b.tasks) do
    if b.alive[n] then
      for _, edge in ipairs(t.more.edges or {}) do add(R.get(t[1]), first(b, edge[1]), edge[2]) end
    end
  end
  for n, t in ipairs(b.tasks) do
    local parent = b.alive[n] and t.more.parent
    if parent then add(R.get(first(b, parent[1])), t[1], parent[2]) end
  end
  for id, h in pairs(waiters) do settle_waiter(h, failed[id]) end
end

function B.store(b)
  local holders = {}
  for n, t in ipairs(b.tasks) do
    if b.alive[n] and not (t.more.key and has_key(b, n, t)) and not (t.more.unique and has_unique(b, n, t, holders)) and t.line.rejects then
      count_or_reject(t, holders)
    end
  end
  judge_edges(b)  -- what waits for a task that turned out to be another's duplicate waits for that one
  for n, t in ipairs(b.tasks) do
    if b.answers[n] and b.answers[n][1] == 'refused' then give_up(t, holders) end
  end
  local count = 0
  for _ in pairs(b.alive) do count = count + 1 end
  local last = count > 0 and call('INCRBY', P .. 'seq', count) or 0
  local seq, lines, queues = last - count, {}, {}
  for n, t in ipairs(b.tasks) do
    if b.alive[n] then
      if b.traces[t[1]] then call('DEL', P .. 'known:' .. t[1]) end
      queues[t.line.queue] = true
      seq = seq + 1
      local h = record(b, n, t, seq)
      lines[#lines + 1] = seq
      lines[#lines + 1] = t[1]
      S.count(h, h[F.state], 1)
      if t.rejected then
        reject(h)
        b.answers[n] = {'rejected', t[1], false, false, {room_at(t.line.limits), S.now}}
      else
        if h[F.lane] > 0 then Lane.live(h[F.lane], 1) end
        if band(h[F.flags], ORDERED) ~= 0 then call('ZADD', P .. 'order:' .. h[F.lane], seq, t[1]) end
        if h[F.expires_at] then call('ZADD', P .. 'expiry', h[F.expires_at], t[1]) end
        M.enter(h)
        b.answers[n] = {'created', t[1]}
      end
      S.tell_task(t.rejected and 'task.dead' or 'task.submitted', h, 1, t.rejected and {error = 'rate_limited'})
    end
  end
  for queue in pairs(queues) do call('SADD', P .. 'queues', queue) end
  in_pieces('ZADD', P .. 'ids', lines)
  if b.linked then link(b) end
end

-- The seal falls with the last batch; broken again, it stays broken. Answers an id that does not exist, if there is one.
function B.unseal(ids)
  for _, id in ipairs(ids) do
    if not R.get(id) then return id end
  end
  for _, id in ipairs(ids) do
    local h = R.get(id)
    if band(h[F.flags], SEALED) ~= 0 then
      h[F.flags] = band(h[F.flags], bnot(SEALED))
      R.touch(h)
      if h[F.state] == WAITING and h[F.open_edges] == 0 then M.wake_up(h) end
    end
  end
end
