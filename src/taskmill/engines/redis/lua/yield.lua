-- A task with this id will live in another shard: here there is none, and from now on there will be none while the entry lives.
-- A: {id, until}   answers whether that is so

if R.get(A[1]) or known(A[1]) then return pack(false) end
call('SET', P .. 'known:' .. A[1], pack({false, 0, '', A[2], true}))
call('ZADD', P .. 'forgets', A[2], A[1])
return done(pack(true))
