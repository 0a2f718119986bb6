-- Finish: every ending of an attempt, applied only under its current lease.
-- A: {generation, outcomes, elsewhere (id -> shard)}; an outcome is {task, worker, token, ending, more}, more a map of what few have: result, error, after, signals, seen, tasks,
-- on_failure, deadline, started_after, suspect, starts (a batch, see place.lua), away (what is started in other shards), wrong (why what follows
-- cannot be started)
-- answers 'settings', or {more, {{place, code, message}, …}, {{task, state}, …}}: the refused, and those that came to another state than asked for

if settings_have_changed(A[1]) then return pack('settings') end

elsewhere = A[3]
local OUTCOMES = {retry = 'failed', snoozed = 'snoozed', waiting = 'waiting', released = 'released', crashed = 'crashed'}
local ENDED = {completed = COMPLETED, dead = DEAD, cancelled = CANCELLED}
local refused, instead = {}, {}

local function attempt(h, o)
  M.attempt(h, OUTCOMES[o[4]], o[5].started_after and h[F.claimed_at] + o[5].started_after or nil, o[5].error)
end

-- A repeat: this lease was ended by its holder, and in this way. The attempt's record tells, or the task's own where there is none.
local function was_applied(h, o)
  for _, raw in ipairs(call('LRANGE', P .. 'attempts:' .. h.id, 0, -1)) do
    local a = cmsgpack.unpack(raw)
    if a[3] == o[3] and a[2] == o[2] then
      local by_recovery = a[7] and cjson.decode(a[7]).code == 'lease_lost'
      return a[6] == OUTCOMES[o[4]] and not by_recovery
    end
  end
  if h[F.state] == RUNNING or h[F.token] ~= o[3] or h[F.worker] ~= o[2] then return false end
  if h[F.state] < RUNNING then return o[4] == 'released' end
  return ENDED[o[4]] == h[F.state]
end

local function tell_instead(h, o)
  if not ENDED[o[4]] then
    if h[F.state] == CANCELLED or h[F.must_end] == 'cancelled' then instead[#instead + 1] = {h.id, h[F.state]} end
  end
end

-- A signal that it would wait for is there already, behind the last it has seen.
local function has_come(h, more)
  if band(h[F.flags], SIGNALS) == 0 then return false end
  local names = {}
  for _, name in ipairs(more.signals) do names[name] = true end
  for _, raw in ipairs(call('LRANGE', P .. 'signals:' .. h.id, 0, -1)) do
    local signal = cmsgpack.unpack(raw)
    if signal[1] > more.seen and names[signal[2]] then return true end
  end
  return false
end

local function begin_to_wait(h, more, children)
  local failed, waits, seen = false, false, {}
  local all = {}
  for _, id in ipairs(more.tasks or {}) do all[#all + 1] = id end
  for _, id in ipairs(children) do all[#all + 1] = id end
  for _, id in ipairs(all) do
    if not seen[id] then
      seen[id], waits = true, true
      local state = state_of(id)
      local fallen = M.add_edge(h, id, state, more.on_failure)
      failed = failed or (fallen and state ~= COMPLETED and more.on_failure == CANCELS) or false
    end
  end
  local awaits = false
  if more.signals and not has_come(h, more) then
    awaits = cjson.encode({more.seen, more.signals})
    h[F.flags] = bor(h[F.flags], AWAITS)
  end
  M.wait(h, more.deadline and S.now + more.deadline or FAR, awaits)
  if failed then
    M.cancel(h, {code = 'edge_failed', message = 'a task it waits for did not complete'}, 'edge_failed')
  elseif h[F.open_edges] == 0 and not awaits and (waits or more.signals) then
    M.ready(h, S.now, {keep = true})
  end
end

local APPLY = {
  completed = function(h, o) M.finish(h, COMPLETED, o[5]) end,
  dead = function(h, o)
    h[F.failures] = h[F.failures] + 1
    o[5].phase = band(h[F.flags], UNWIND) ~= 0 and 'compensation_failed' or nil
    M.finish(h, DEAD, o[5])
  end,
  cancelled = function(h, o) M.finish(h, CANCELLED, o[5]) end,
  retry = function(h, o)
    attempt(h, o)
    h[F.failures] = h[F.failures] + 1
    M.later(h, RETRYING, S.now + (o[5].after or 0), o[5])
  end,
  snoozed = function(h, o)
    attempt(h, o)
    M.later(h, SCHEDULED, S.now + (o[5].after or 0), {started_after = o[5].started_after})
  end,
  released = function(h, o)
    if o[5].started_after then
      attempt(h, o)
      M.ready(h, h[F.ready_at], {keep = true})
    else
      M.ready(h, h[F.ready_at], {keep = true, executions = h[F.executions] - 1})
    end
  end,
  crashed = function(h, o)
    attempt(h, o)
    M.crash(h, o[5].error, true)
  end,
  waiting = function(h, o, children)
    attempt(h, o)
    begin_to_wait(h, o[5], children)
  end,
}

local function awaited_by(b, more)
  local ids = {}
  for _, id in ipairs(more.tasks or {}) do ids[#ids + 1] = id end
  for _, t in ipairs(b.tasks) do ids[#ids + 1] = t[1] end
  return ids
end

-- Why an outcome under a current lease cannot be applied, and the batch that follows.
local function judge(o)
  local more = o[5]
  if o[4] == 'waiting' then
    for _, id in ipairs(more.tasks or {}) do
      local _, exists = state_of(id)
      if not exists then return {'unknown_edge', id} end
    end
  end
  if more.wrong then return {'refused', more.wrong} end
  if not more.starts and not more.tasks then return nil end
  local b = B.open(more.starts or {{}, {}})
  B.judge(b)
  local wrong = B.refused(b)
  if wrong then return {'refused', wrong[2] .. ' ' .. wrong[3] .. ' ' .. (wrong[4] or '')} end
  if o[4] == 'waiting' and B.reaches(b, awaited_by(b, more), o[1], {}) then return {'cycle', ''} end
  return nil, more.starts and b
end

local function apply(o)
  local h = R.get(o[1])
  if not h then return {'not_found', ''} end
  if h[F.state] ~= RUNNING or h[F.token] ~= o[3] or h[F.worker] ~= o[2] then
    if was_applied(h, o) then
      tell_instead(h, o)
      return nil
    end
    return {'stale_lease', ''}
  end
  local wrong, b = judge(o)
  if wrong then return wrong end
  if o[5].started_after or o[4] == 'crashed' then M.begun(h) end
  if o[5].suspect or o[4] == 'crashed' then h[F.flags] = bor(h[F.flags], SUSPECT) end
  if o[5].away then S.post(SHARD, 'start', {o[5].away}) end
  local children = {}
  if b and o[4] == 'waiting' then  -- they are there before the wait for them begins
    B.store(b)
    for n in ipairs(b.tasks) do children[n] = b.answers[n][2] end
  end
  if band(h[F.flags], CANCEL) ~= 0 and not ENDED[o[4]] then
    attempt(h, o)
    instead[#instead + 1] = {h.id, M.cancel(h)}
  else
    APPLY[o[4]](h, o, children)
  end
  if b and o[4] ~= 'waiting' then B.store(b) end
end

local ids = {}
for n, o in ipairs(A[2]) do ids[n] = o[1] end
R.load(ids)
for n, o in ipairs(A[2]) do
  local why = apply(o)
  if why then refused[#refused + 1] = {n, why[1], why[2]} end
end
local more = M.settle()
return done(pack({more, refused, instead}))
