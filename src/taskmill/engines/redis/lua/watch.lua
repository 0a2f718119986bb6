-- Tasks of another shard wait for one of this; it is told when it ends, or at once. One that does not exist never will and counts as cancelled, unless it is to come:
-- then it is told when it has come and ended.
-- A: {shard, id, whether it is to come}   answers true

local id = call('GET', P .. 'alias:' .. A[2]) or A[2]
local h, k = R.get(id), known(id)
local watcher = int(A[1]) .. ':' .. A[2]
if h then
  call('SADD', P .. 'watchers:' .. id, watcher)
  h[F.flags] = bor(h[F.flags], WATCHED)
  R.touch(h)
  if h[F.state] >= COMPLETED then S.post(A[1], 'fell', {A[2], h[F.state], h[F.result]}) end
elseif k and not k[1] then  -- reserved
  call('SADD', P .. 'watchers:' .. id, watcher)
elseif A[3] and not k then
  call('SADD', P .. 'watchers:' .. id, watcher)
  M.await(id)
else
  S.post(A[1], 'fell', {A[2], k and k[1] or CANCELLED, false})
end
return done(pack(true))
