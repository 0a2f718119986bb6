-- Checkpoints: what running tasks have done so far, each merged under its lease. A task has no more of them, in number and bytes, than a claim can bring along.
-- A: {entries, most steps, most bytes}; an entry is {task, worker, token, name|false, value, progress|false, unwind: -1, 0 or 1, phase|false, event data,
-- started_after|false}   answers {{place, code}, …}, the refused

local MOST, MOST_BYTES = A[2], A[3]

-- Keep a step's value; or why not.
local function keep(h, name, value)
  local key = P .. 'checkpoints:' .. h.id
  local before = call('HGET', key, name)
  local steps, signals = bytes_in(call('HGET', P .. 'beside', h.id))
  steps = steps + #value - (before and #before or -#name)
  if not before and call('HLEN', key) >= MOST then return 'too_many_steps' end
  if steps > MOST_BYTES then return 'steps_too_large' end
  call('HSET', key, name, value)
  M.set_beside(h, steps, signals)
  h[F.flags] = bor(h[F.flags], CHECKPOINTS)
end

local function merge(h, e)
  local why = e[4] and keep(h, e[4], e[5])
  if why then return why end
  if e[7] == 1 then h[F.flags] = bor(h[F.flags], UNWIND) elseif e[7] == 0 then h[F.flags] = band(h[F.flags], bnot(UNWIND)) end
  if e[6] then h[F.progress] = e[6] end
  if e[8] then h[F.phase] = e[8] end
  R.touch(h)
  if e[10] then
    h[F.started_at] = h[F.claimed_at] + e[10]
    M.begun(h)
    if not (e[4] or e[6] or e[8] or e[7] >= 0) then return end  -- nothing that anybody watches for
  end
  h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
  S.tell_task('task.progress', h, h[F.version], e[9])
end

local refused = {}
for n, e in ipairs(A[1]) do
  local h = R.get(e[1])
  local current = h and h[F.state] == RUNNING and h[F.token] == e[3] and h[F.worker] == e[2]
  local why = not h and 'not_found' or not current and 'stale_lease' or merge(h, e)
  if why then refused[#refused + 1] = {n, why} end
end
return done(pack(refused))
