-- Cancel, requeue, delete: tasks by id and the version the caller saw.
-- A: {verb, {{task, version|false, hash|false}, …}, from_start}   answers {done, state|false, version|false, requested, code|false} for each; for a delete that wants
-- the payload's hash first (its id stays known for its window), code `hash` and the body in place of the version

local verb, from_start = A[1], A[3]

local function shown(h)
  local state = h[F.state]
  if (state == SCHEDULED or state == RETRYING or state == WAITING) and h[F.ready_at] <= S.now then return PENDING end
  return state
end

local function refused(h, code) return {false, shown(h), h[F.version], false, code} end

-- A task that is only reserved will never come: its id is known as cancelled, and what waits for it hears of it.
local function cancel_reserved(id, k)
  if not k[1] then
    k[1] = CANCELLED
    call('SET', P .. 'known:' .. id, pack(k))
    M.fallen[#M.fallen + 1] = {id, CANCELLED}
    M.tell_watchers({id = id, [F.state] = CANCELLED, [F.result] = false})
    S.ended = true
  end
  return {true, CANCELLED, 0, false, false}
end

local function missing(id, version)
  local k = known(id)
  if not k then return {false, false, false, false, 'not_found'} end
  if verb == 'cancel' and k[2] == 0 then return cancel_reserved(id, k) end
  if verb == 'delete' and version and k[2] == version and k[1] then return {true, k[1], k[2], false, false} end
  return {false, k[1], false, false, 'expired'}
end

local function cancel(h, version)
  local again = version and h[F.version] == version + 1
  local flags, state = h[F.flags], h[F.state]
  if state == CANCELLED and (again or not version) then return {true, CANCELLED, h[F.version], false, false} end
  if state == RUNNING and band(flags, CANCEL) ~= 0 and (again or not version) then return {true, RUNNING, h[F.version], true, false} end
  if again and band(flags, UNWIND) ~= 0 and h[F.must_end] == 'cancelled' then return {true, PENDING, h[F.version], false, false} end
  if state >= COMPLETED then return refused(h, 'terminal') end
  if version and h[F.version] ~= version then return refused(h, 'stale_version') end
  if state == RUNNING then
    M.request_cancel(h)
    return {true, RUNNING, h[F.version], true, false}
  end
  if band(flags, UNWIND) ~= 0 and h[F.must_end] then return {true, PENDING, h[F.version], false, false} end
  return {true, M.cancel(h), h[F.version], false, false}
end

local function requeue(h, version)
  if version and h[F.opened] == version then return {true, shown(h), h[F.version], false, false} end
  if h[F.state] < COMPLETED then return refused(h, 'not_terminal') end
  if version and h[F.version] ~= version then return refused(h, 'stale_version') end
  if band(h[F.flags], WAITED) ~= 0 and call('HEXISTS', P .. 'fallen', h.id) == 1 then return refused(h, 'edges_falling') end
  if h[F.unique] and band(h[F.flags], UNIQUE_STARTED + UNIQUE_ENDED) ~= 0 then
    local holder = call('GET', M.unique_key(h))
    if holder and holder ~= h.id then return refused(h, 'unique_held') end
    call('SET', M.unique_key(h), h.id)
  end
  local last = call('LINDEX', P .. 'attempts:' .. h.id, -1)
  if h[F.token] and not (last and cmsgpack.unpack(last)[3] == h[F.token]) then
    local err = h[F.error] and cjson.decode(h[F.error])
    local outcome = h[F.state] == COMPLETED and 'completed' or h[F.state] == CANCELLED and 'cancelled' or 'failed'
    if err and err.code == 'poison' then outcome = 'crashed' end
    call('RPUSH', P .. 'attempts:' .. h.id,
      pack({h[F.executions], h[F.worker], h[F.token], h[F.started_at] or h[F.claimed_at], h[F.finished_at], outcome, h[F.error]}))
  end
  if band(h[F.flags], WAITED) ~= 0 then M.keep_results(h) end
  call('ZREM', P .. 'ended:' .. h[F.state], h.id)
  if from_start then
    call('UNLINK', P .. 'checkpoints:' .. h.id)
    M.set_beside(h, 0, 0)
    h[F.flags] = band(h[F.flags], bnot(UNWIND + CHECKPOINTS))
    h[F.must_end], h[F.phase], h[F.progress] = false, false, false
  end
  M.open_again(h)
  return {true, h[F.state], h[F.version], false, false}
end

local function delete(h, version, hash)
  if h[F.state] < COMPLETED then return refused(h, 'not_terminal') end
  if version and h[F.version] ~= version then return refused(h, 'stale_version') end
  if M.owes(h) then return refused(h, 'undelivered') end
  if not hash and M.known_until(h) > S.now then return {false, false, answer_raw(h.body), false, 'hash'} end
  local answer = {true, h[F.state], h[F.version], false, false}
  M.purge(h, hash)
  S.tell_task('task.deleted', h, h[F.version] + 1)
  return answer
end

local CHANGE = {cancel = cancel, requeue = requeue, delete = delete}
local answers = {}
for n, t in ipairs(A[2]) do
  local h = R.get(t[1])
  answers[n] = h and CHANGE[verb](h, t[2], t[3]) or missing(t[1], t[2])
end
M.settle()
return done(pack(answers))
