-- Submit: see place.lua.
-- A: {generation, batch, unseal, elsewhere (id -> shard)}   answers 'settings' (read them anew), 'hashes' (an id is
-- reserved: say the hash of every payload), {'unknown', id} (nothing to unseal), or an answer for each task

if settings_have_changed(A[1]) then return pack('settings') end
elsewhere = A[4]
local b = B.open(A[2])
for _, id in ipairs(A[3]) do
  if not (R.get(id) or b.place[id]) then return pack({'unknown', id}) end
end
B.judge(b)
if b.unhashed then return pack('hashes') end
B.store(b)
M.settle()
B.unseal(A[3])
M.settle()
return done(pack(b.answers))
