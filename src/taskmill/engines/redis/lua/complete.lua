-- Completed, for tasks whose record nobody has touched since their claim: the caller has made it new, and it is stored if the lease is still the one it was.
-- A: groups {{queue, type, priority, worker, end of the lease, how many}, …}; then for each task its id and token (one string), and its record without its time
-- answers {place, …}, those that are not as they were

local ids, at, n = {}, 3, 0
for _, g in ipairs(A) do
  for _ = 1, g[6] do
    n = n + 1
    ids[n] = string.sub(ARGV[at], 1, 36)
    at = at + 2
  end
end
local leases = call('HMGET', P .. 'leases', unpack(ids))
local records, gone, ended, refused = {}, {}, {}, {}
local now, owes, hears = int(S.now), call('EXISTS', P .. 'owed') == 1, S.listening()
local done, place = 0, 0

local function tell(g, id, record)
  local h = array_of(record)
  local owed = {id = id, type = g[2], queue = g[1], state = 'completed', version = h[F.version]}
  if owes then
    S.owe('ended', id, owed)
    S.owe('archive', id, owed)
  end
  h.id = id
  local began = h[F.started_at] or h[F.claimed_at]
  S.tell_task('task.completed', h, h[F.version], {attempt = h[F.executions], duration = math.max(0, S.now - began)})
end

for _, g in ipairs(A) do
  local tail, run, before = g[5], {}, done
  for _ = 1, g[6] do
    place = place + 1
    local id, token = ids[place], string.sub(ARGV[2 * place + 1], 37)
    if leases[place] == token .. tail then
      done = done + 1
      local record = STAMP .. ARGV[2 * place + 2]
      records[2 * done - 1], records[2 * done] = P .. 't:' .. id, record
      ended[2 * done - 1], ended[2 * done] = now, id
      gone[done], run[#run + 1] = id, token
      if owes or hears then tell(g, id, record) end
    else
      refused[#refused + 1] = place
    end
  end
  if done > before then
    call('HDEL', P .. 'run:' .. g[4], unpack(run))
    local field = g[1] .. '\t' .. g[2] .. '\t' .. g[3] .. '\t'
    S.counts[field .. RUNNING] = (S.counts[field .. RUNNING] or 0) - (done - before)
    S.counts[field .. COMPLETED] = (S.counts[field .. COMPLETED] or 0) + (done - before)
  end
end
if done > 0 then
  call('MSET', unpack(records))
  call('HDEL', P .. 'leases', unpack(gone))
  call('ZADD', P .. 'ended:' .. COMPLETED, unpack(ended))
  S.ended = true
  S.finish()
end
return pack(refused)
