-- Tasks of another shard wait for one of this; it is told when it ends, or at once. One that does not exist never will: it counts as cancelled.
-- A: {shard, id}   answers true

local id = call('GET', P .. 'alias:' .. A[2]) or A[2]
local h, k = R.get(id), known(id)
if h then
  call('SADD', P .. 'watchers:' .. id, int(A[1]) .. ':' .. A[2])
  h[F.flags] = bor(h[F.flags], WATCHED)
  R.touch(h)
  if h[F.state] >= COMPLETED then S.post(A[1], 'fell', {A[2], h[F.state], h[F.result]}) end
else
  S.post(A[1], 'fell', {A[2], k and k[1] or CANCELLED, false})
end
return done(pack(true))
