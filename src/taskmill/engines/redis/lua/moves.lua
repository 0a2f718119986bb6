-- The arrows of a task's life, and what each of them owes to lines, lanes, limits, unique keys, edges, outbox and events. Verbs decide, these write. What
-- concerns others (slots, lanes, edges) is gathered and done once by M.settle.
--
-- q:<queue>:<p>  the plain line: what is ready and what will be, by when         l:<lane>:<p>  what is ready in a lane
-- due            what time alone makes ready or ends the wait of                run:<worker>  its leases, by token

local M = {freed = {}, stirred = {}, fallen = {}}  -- fallen: {child, state, far, result}

local SLICE = 100  -- edges applied in one step

-- A lease among those of its worker: by its token, the request that took it and the task.
local function lease_field(token) return string.format('%016x', token) end
local function lease_value(request, id) return int(request) .. '\t' .. id end

-- (token, request, id) of all leases of a worker, or of some.
local function leases_of(worker, most)
  local key = P .. 'run:' .. worker
  local found, leases = most and call('HRANDFIELD', key, most, 'WITHVALUES') or call('HGETALL', key), {}
  for i = 1, #found, 2 do
    local request, id = string.match(found[i + 1], '^(%d+)\t(.*)$')
    leases[#leases + 1] = {tonumber(found[i], 16), tonumber(request), id}
  end
  table.sort(leases, function(a, b) return a[1] < b[1] end)
  return leases
end

local function line_of(h)
  if h[F.lane] == 0 then return P .. 'q:' .. h[F.queue] .. ':' .. h[F.priority] end
  return P .. 'l:' .. h[F.lane] .. ':' .. h[F.priority]
end

-- Into the line where its state puts it; out of it.
function M.enter(h)
  local state, lane = h[F.state], h[F.lane]
  if state == PENDING or (lane == 0 and state < RUNNING) then call('ZADD', line_of(h), h[F.ready_at], line_member(h)) end
  if (state == SCHEDULED or state == RETRYING or state == WAITING) and h[F.ready_at] < FAR then
    call('ZADD', P .. 'due', h[F.ready_at], h.id)
    S.wake(h[F.queue])  -- a sleeper may know of nothing that is due as early
  end
  if state < RUNNING then
    S.wake(h[F.queue])
    if lane > 0 then M.stirred[lane] = true end
  end
end

function M.leave_line(h)
  local state = h[F.state]
  if state == PENDING or (h[F.lane] == 0 and state < RUNNING) then call('ZREM', line_of(h), line_member(h)) end
  if state == SCHEDULED or state == RETRYING or state == WAITING then call('ZREM', P .. 'due', h.id) end
end

function M.leave(h)
  local state, lane = h[F.state], h[F.lane]
  M.leave_line(h)
  if state == RUNNING then
    call('HDEL', P .. 'run:' .. h[F.worker], lease_field(h[F.token]))
    if band(h[F.flags], CANCEL) ~= 0 then call('SREM', P .. 'stop:' .. h[F.worker], h.id) end
    if lane > 0 then M.freed[lane] = (M.freed[lane] or 0) + 1 end
  end
  if lane > 0 and (state ~= RUNNING or band(h[F.flags], ORDERED) ~= 0) then M.stirred[lane] = true end
end

local function arrive(h, state, told)
  S.count(h, h[F.state], -1)
  S.count(h, state, 1)
  h[F.state] = state
  h[F.version] = h[F.version] + 1
  h[F.updated_at] = S.now
  R.touch(h)
  M.enter(h)
  S.tell_task('task.' .. KINDS[state], h, h[F.version], told)
end

local function void_lease(h, keep)
  if not keep then h[F.token], h[F.worker] = false, false end
  h[F.request], h[F.awaits], h[F.started_at], h[F.finished_at] = false, false, false, false
end

-- The task can be claimed. Its time has come once; if the clock was set back since, it is due all the same. `crashed`: the code of what ended its attempt.
function M.ready(h, ready_at, o)
  o = o or {}
  local told = o.crashed and S.of_attempt(h, o.crashed)
  M.leave(h)
  if o.must_end then
    h[F.flags] = band(h[F.flags], bnot(CANCEL + AWAITS + SEALED))
    h[F.crashes] = 0
    h[F.must_end] = o.must_end
  end
  if o.executions then h[F.executions] = o.executions end
  h[F.ready_at] = math.min(ready_at, S.now)
  void_lease(h, o.keep)
  arrive(h, PENDING, told)
end

-- Scheduled or retrying, until ready_at; its lease ends with it and stays known, for the repeat of this step.
function M.later(h, state, ready_at, o)
  local told = S.of_attempt(h, o and o.error and o.error.code, o and o.started_after)
  M.leave(h)
  h[F.ready_at] = ready_at
  void_lease(h, true)
  arrive(h, state, told)
end

-- Nothing is left to wait for; still no task starts before its time.
function M.wake_up(h)
  if h[F.executions] == 0 and h[F.run_at] > S.now then M.later(h, SCHEDULED, h[F.run_at]) else M.ready(h, S.now) end
end

function M.wait(h, deadline, awaits)
  M.leave(h)
  h[F.ready_at], h[F.awaits], h[F.started_at] = deadline, awaits or false, false
  arrive(h, WAITING)
end

local function let_go(h, state)
  local flags = h[F.flags]
  if band(flags, UNIQUE_ENDED + UNIQUE_STARTED) ~= 0 then M.free_unique(h) end
  if band(flags, SIGNALS) ~= 0 then
    call('UNLINK', P .. 'signals:' .. h.id, P .. 'signal_ids:' .. h.id)
    M.set_beside(h, (bytes_in(call('HGET', P .. 'beside', h.id))), 0)
  end
  if band(flags, ORDERED) ~= 0 then call('ZREM', P .. 'order:' .. h[F.lane], h.id) end
  if band(flags, WAITED) ~= 0 then M.fallen[#M.fallen + 1] = {h.id, state} end
  if h[F.lane] > 0 then Lane.live(h[F.lane], -1) end
  if h[F.expires_at] then call('ZREM', P .. 'expiry', h.id) end
end

-- Bytes that it has beside its record.
function M.beside(h)
  if band(h[F.flags], CHECKPOINTS + SIGNALS) == 0 then return 0 end
  local steps, signals = bytes_in(call('HGET', P .. 'beside', h.id))
  return steps + signals
end

function M.set_beside(h, steps, signals)
  if steps + signals > 0 then call('HSET', P .. 'beside', h.id, int(steps) .. ' ' .. int(signals)) else call('HDEL', P .. 'beside', h.id) end
end

-- Its handler began: a unique key that is held until then is free.
function M.begun(h)
  if band(h[F.flags], UNIQUE_STARTED) ~= 0 then M.free_unique(h) end
end

function M.unique_key(h) return P .. 'u:' .. h[F.tenant] .. '\t' .. h[F.type] .. '\t' .. h[F.unique] end

function M.free_unique(h)
  local key = M.unique_key(h)
  if call('GET', key) == h.id then call('DEL', key) end
end

-- Completed, dead or cancelled. The attempt that ended it stays in the record; one that ended earlier has its own.
function M.finish(h, state, o)
  o = o or {}
  local attempt, told = h[F.state] == RUNNING, S.of_attempt(h, o.error and o.error.code, o.started_after)
  M.leave(h)
  if o.started_after then h[F.started_at] = h[F.claimed_at] + o.started_after end
  h[F.flags] = band(h[F.flags], bnot(CANCEL + AWAITS + SEALED + (state == COMPLETED and SUSPECT or 0)))
  h[F.awaits], h[F.request] = false, false
  if o.phase then h[F.phase] = o.phase end
  if not attempt then h[F.token], h[F.worker] = false, false end
  h[F.finished_at] = S.now
  h[F.result] = o.result or false
  h[F.error] = o.error and cjson.encode(o.error) or false
  let_go(h, state)
  arrive(h, state, told)
  S.add_later(P .. 'ended:' .. state, S.now, h.id)
  S.ended = true
  local owed = {id = h.id, type = h[F.type], queue = h[F.queue], state = STATES[state], version = h[F.version]}
  S.owe('ended', h.id, owed)
  S.owe('archive', h.id, owed)
  if state == DEAD then S.owe('dead', h.id, owed) end
  if band(h[F.flags], WATCHED) ~= 0 then M.tell_watchers(h) end
end

-- Shards whose tasks wait for this one, each with the name under which it is waited for there.
function M.tell_watchers(h)
  for _, watcher in ipairs(call('SMEMBERS', P .. 'watchers:' .. h.id)) do
    local shard, name = string.match(watcher, '^(%d+):(.*)$')
    S.post(tonumber(shard), 'fell', {name, h[F.state], h[F.result]})
  end
end

-- Cancelled; a task that must unwind becomes ready to do so instead. Answers the state it came to.
function M.cancel(h, err, reason)
  if band(h[F.flags], UNWIND) ~= 0 and not h[F.must_end] then
    M.ready(h, S.now, {must_end = reason or 'cancelled'})
    return PENDING
  end
  M.finish(h, CANCELLED, {error = err})
  return CANCELLED
end

-- The record of an attempt that did not end its task.
function M.attempt(h, outcome, started_at, err)
  call('RPUSH', P .. 'attempts:' .. h.id,
    pack({h[F.executions], h[F.worker], h[F.token], started_at or h[F.started_at] or h[F.claimed_at], S.now, outcome, err and cjson.encode(err) or false}))
end

-- One crash more; past the most that it may have the task is poison. A cancel that was asked for comes first.
function M.crash(h, err, keep)
  h[F.crashes] = h[F.crashes] + 1
  if band(h[F.flags], CANCEL) ~= 0 then
    M.cancel(h)
  elseif h[F.crashes] <= h[F.max_crashes] then
    M.ready(h, h[F.ready_at], {keep = keep, crashed = err and err.code or 'lease_lost'})
  elseif band(h[F.flags], UNWIND) ~= 0 and not h[F.must_end] then
    M.ready(h, S.now, {must_end = 'poison', keep = keep, crashed = err and err.code or 'lease_lost'})
  else
    local message = 'its worker died ' .. h[F.crashes] .. ' times' .. (err and ': ' .. (err.message or '') or '')
    M.finish(h, DEAD, {error = {code = 'poison', message = message}, phase = band(h[F.flags], UNWIND) ~= 0 and 'compensation_failed' or nil})
  end
end

-- Edges. e:<waiter>  child -> number, on_failure, outcome, result      eo:<waiter>  children by number      w:<child>  waiters by number

local CANCELS, IGNORES, HOLDS = 0, 1, 2

function M.edge(waiter, child)
  local raw = call('HGET', P .. 'edges:' .. waiter, child)
  return raw and cmsgpack.unpack(raw) or nil
end

function M.set_edge(waiter, child, edge) call('HSET', P .. 'edges:' .. waiter, child, pack(edge)) end

-- A new edge of `h` onto a child in this state (record or what is remembered). Answers nil if it was there, else whether it fell at once.
function M.add_edge(h, child, state, on_failure)
  if call('HEXISTS', P .. 'edges:' .. h.id, child) == 1 then return nil end
  local fallen = state ~= nil and state >= COMPLETED and (state == COMPLETED or on_failure ~= HOLDS)
  local number = call('INCR', P .. 'edge')
  M.set_edge(h.id, child, {number, on_failure, fallen and state or false, false})
  call('ZADD', P .. 'edge_order:' .. h.id, number, child)
  call('ZADD', P .. 'waiters:' .. child, number, h.id)
  h[F.flags] = bor(h[F.flags], EDGES)
  if not fallen then h[F.open_edges] = h[F.open_edges] + 1 end
  R.touch(h)
  if elsewhere[child] then
    S.post(elsewhere[child], 'watch', {child})
    return fallen
  end
  local c = R.get(child)
  if c and band(c[F.flags], WAITED) == 0 then
    c[F.flags] = bor(c[F.flags], WAITED)
    R.touch(c)
  end
  return fallen
end

-- Tasks wait for one that the store does not know: it is noticed when it comes.
function M.await(id) call('SET', P .. 'known:' .. id, pack({false, 0, '', FAR, false, true})) end

-- Edges of a child that ended in this state fall: those numbered behind `after`, up to n. How many were looked at, and the last. The result of one that lives
-- in another shard is kept with the edge.
local function fall(child, state, after, n, far, result)
  local found = call('ZRANGEBYSCORE', P .. 'waiters:' .. child, '(' .. int(after), '+inf', 'WITHSCORES', 'LIMIT', 0, n)
  local last, waiters = after, {}
  for i = 1, #found, 2 do waiters[#waiters + 1] = found[i] end
  R.load(waiters)
  for i = 1, #found, 2 do
    local waiter, number = found[i], tonumber(found[i + 1])
    last = number
    local edge = M.edge(waiter, child)
    if edge and not edge[3] and (state == COMPLETED or edge[2] ~= HOLDS) then
      edge[3] = state
      if far then edge[4], edge[5] = result, true end
      M.set_edge(waiter, child, edge)
      local h = R.get(waiter)
      if h then
        h[F.open_edges] = h[F.open_edges] - 1
        R.touch(h)
        if h[F.state] == WAITING then
          if state ~= COMPLETED and edge[2] == CANCELS then
            M.cancel(h, {code = 'edge_failed', message = 'a task it waited for did not complete'}, 'edge_failed')
          elseif h[F.open_edges] == 0 and band(h[F.flags], SEALED + AWAITS) == 0 then
            M.wake_up(h)
          end
        end
      end
    end
  end
  return #found / 2, last
end

-- One slice of the edges that are still to fall; whether there are more. Whoever comes next calls it.
function M.fall_slice()
  local budget = SLICE
  while true do
    for _, pair in ipairs(M.fallen) do
      local h = R.get(pair[1])
      call('ZADD', P .. 'falling', h and h[F.seq] or 0, pair[1])
      call('HSET', P .. 'fallen', pair[1], pack({pair[2], 0, pair[3] or false, pair[4] or false}))
    end
    M.fallen = {}
    local child = call('ZRANGE', P .. 'falling', 0, 0)[1]
    if not child then return false end
    if budget <= 0 then return true end
    local state = cmsgpack.unpack(call('HGET', P .. 'fallen', child))
    local n, last = fall(child, state[1], state[2], budget, state[3], state[4])
    if n < budget then
      call('ZREM', P .. 'falling', child)
      call('HDEL', P .. 'fallen', child)
    else
      call('HSET', P .. 'fallen', child, pack({state[1], last, state[3], state[4]}))
    end
    budget = budget - n - 1
  end
end

-- Apply what was decided to slots and lanes. Whether edges are left to fall in later slices.
function M.settle()
  local more = M.fall_slice()
  while next(M.freed) or next(M.stirred) do
    local freed, stirred = M.freed, M.stirred
    M.freed, M.stirred = {}, {}
    if next(freed) then Lane.give_back(freed) end
    if next(stirred) then Lane.refresh(stirred, true) end
  end
  return more
end

-- What time alone has changed: delayed tasks that are due, deadlines of waits, windows that have room. Bounded; whether there is more.
function M.open_due()
  local most = 50
  local due = call('ZRANGEBYSCORE', P .. 'due', '-inf', S.now, 'LIMIT', 0, most)
  R.load(due)
  local stirred = {}
  for _, id in ipairs(due) do
    call('ZREM', P .. 'due', id)
    local h = R.get(id)
    if h then
      local waited = h[F.state] == WAITING
      S.count(h, h[F.state], -1)
      S.count(h, PENDING, 1)
      h[F.state] = PENDING
      if waited then
        h[F.version], h[F.ready_at], h[F.awaits] = h[F.version] + 1, S.now, false
        h[F.flags] = band(h[F.flags], bnot(AWAITS))
        S.tell_task('task.ready', h, h[F.version])
      end
      R.touch(h)
      if waited or h[F.lane] > 0 then call('ZADD', line_of(h), h[F.ready_at], line_member(h)) end
      if h[F.lane] > 0 then stirred[h[F.lane]] = true end
      S.wake(h[F.queue])
    end
  end
  Lane.refresh(stirred)
  local passed = call('ZRANGEBYSCORE', P .. 'wakes', '-inf', S.now, 'LIMIT', 0, most)
  for _, name in ipairs(passed) do
    call('ZREM', P .. 'wakes', name)
    Lane.wake(Limit.get(name))
  end
  return #due == most or #passed == most
end

local function answered(answer)
  local all = {answer}
  for n, text in ipairs(raws) do all[n + 1] = text end
  if S.posted then all[1] = '\193' .. answer end
  return all
end

local function done(answer)
  Lane.save()
  S.finish()
  return answered(answer)
end
