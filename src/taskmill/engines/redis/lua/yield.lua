-- A task with this id will live in another shard: here there is none, and from now on there will be none while the entry lives. Those who wait for it here, or from
-- other shards, wait for it there.
-- A: {id, until, shard}   answers whether that is so

local id = A[1]
if R.get(id) or known(id) then return pack(false) end
for _, watcher in ipairs(call('SMEMBERS', P .. 'watchers:' .. id)) do
  S.post(A[3], 'watch', {id, true, tonumber(string.match(watcher, '^(%d+):'))})
end
call('DEL', P .. 'watchers:' .. id)
if call('EXISTS', P .. 'waiters:' .. id) == 1 then S.post(A[3], 'watch', {id, true, SHARD}) end
call('SET', P .. 'known:' .. id, pack({false, 0, '', A[2], true}))
call('ZADD', P .. 'forgets', A[2], id)
return done(pack(true))
