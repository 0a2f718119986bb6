-- Completed, for tasks whose record nobody has touched since their claim: the caller has made it new, and it is stored if the lease is still the one it was.
-- A: {groups {{queue, type, priority, worker}, …}, tasks {{id, lease, record (raw), group, version}, …}}   answers {place, …}, those that are not as they were

local ids, refused, n = {}, {}, 0
for i, t in ipairs(A[2]) do ids[i] = t[1] end
local leases = call('HMGET', P .. 'leases', unpack(ids))
local records, gone, ended, runs, counts = {}, {}, {}, {}, {}
local now, owes, hears = int(S.now), call('EXISTS', P .. 'owed') == 1, S.listening()
for i, t in ipairs(A[2]) do
  local id, lease = t[1], t[2]
  if leases[i] == lease then
    local g = A[1][t[4]]
    n = n + 1
    records[2 * n - 1], records[2 * n] = P .. 't:' .. id, STAMP .. given_raw(t[3])
    ended[2 * n - 1], ended[2 * n] = now, id
    gone[n] = id
    local run = runs[g[4]] or {}
    runs[g[4]] = run
    run[#run + 1] = string.sub(lease, 1, 16) .. id
    counts[t[4]] = (counts[t[4]] or 0) + 1
    if owes then
      local owed = {id = id, type = g[2], queue = g[1], state = 'completed', version = t[5]}
      S.owe('ended', id, owed)
      S.owe('archive', id, owed)
    end
    if hears then S.tell('task.completed', id, t[5], {type = g[2], queue = g[1]}) end
  else
    refused[#refused + 1] = i
  end
end
if n > 0 then
  call('MSET', unpack(records))
  call('HDEL', P .. 'leases', unpack(gone))
  call('ZADD', P .. 'ended:' .. COMPLETED, unpack(ended))
  for worker, run in pairs(runs) do call('ZREM', P .. 'run:' .. worker, unpack(run)) end
  for group, count in pairs(counts) do
    local g = A[1][group]
    local field = g[1] .. '\t' .. g[2] .. '\t' .. g[3] .. '\t'
    S.counts[field .. RUNNING] = (S.counts[field .. RUNNING] or 0) - count
    S.counts[field .. COMPLETED] = (S.counts[field .. COMPLETED] or 0) + count
  end
  S.ended = true
  S.finish()
end
return pack(refused)
