-- A task of another shard has ended, and tasks of this one wait for it. A: {id, state, result|false}, or nothing: one slice more
-- answers whether edges are left to fall

if A[1] then M.fallen[1] = {A[1], A[2], true, A[3]} end
return done(pack(M.settle()))
