-- A worker is gone; what it still held is released. A: {worker}

M.give_back(A[1], FAR, {})
M.settle()
if call('HDEL', P .. 'workers', A[1]) == 1 and SHARD == 0 then S.tell('worker.left', A[1], 0) end
call('ZREM', P .. 'beats', A[1])
call('HDEL', P .. 'requests', A[1])
call('HDEL', P .. 'served', A[1])
call('UNLINK', P .. 'run:' .. A[1], P .. 'stop:' .. A[1])
return done(pack(true))
